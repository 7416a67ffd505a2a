//! What expressions may name.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Value;

/// What expressions may name, and what it stands for.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// `env`: the environment.
    pub env: BTreeMap<String, String>,
    /// `inputs`: those of the step.
    pub inputs: BTreeMap<String, Expanded>,
    /// `vars`, formerly `job`: the variables of the CI job.
    pub vars: BTreeMap<String, String>,
    /// `steps`: those before, by name.
    pub steps: BTreeMap<String, StepState>,
    /// `export_file`: where to write variables for later steps.
    pub export_file: String,
    /// `output_file`: where to write outputs.
    pub output_file: String,
    /// `func_dir`, formerly `step_dir`: where the step file is.
    pub step_dir: String,
    /// `work_dir`: where the job is.
    pub work_dir: String,
    /// What `success()` and `failure()` say: whether a step before has failed.
    pub failed: bool,
    /// What `cancelled()` says.
    pub cancelled: bool,
}

/// A step that is over.
#[derive(Clone, Debug, Default)]
pub struct StepState {
    /// `outputs`: what it gave.
    pub outputs: BTreeMap<String, Expanded>,
    /// `status`: how it ended.
    pub status: Status,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Well.
    #[default]
    Success,
    /// Not well.
    Failure,
    /// It did not run: its condition was false.
    Skipped,
}

/// A value, and the secrets that it was made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expanded {
    /// The value.
    pub value: Value,
    /// The names of the sensitive inputs and outputs that went into it: `inputs.token`.
    pub secrets: BTreeSet<String>,
}

impl From<Value> for Expanded {
    fn from(value: Value) -> Self {
        Expanded { value, secrets: BTreeSet::new() }
    }
}
