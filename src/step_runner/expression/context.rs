//! The names that expressions can refer to.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Value;

/// The names that expressions can refer to, with their values.
#[derive(Clone, Debug, Default)]
pub struct Context {
    pub env: BTreeMap<String, String>,
    /// `inputs`: inputs of the step.
    pub inputs: BTreeMap<String, Expanded>,
    /// `vars`, formerly `job`: variables of the CI job.
    pub vars: BTreeMap<String, String>,
    /// `steps`: earlier steps by name.
    pub steps: BTreeMap<String, StepState>,
    /// `export_file`: path of the file for exported variables.
    pub export_file: String,
    /// `output_file`: path of the file for outputs.
    pub output_file: String,
    /// `func_dir`, formerly `step_dir`: directory of the step file.
    pub step_dir: String,
    /// `work_dir`: working directory of the job.
    pub work_dir: String,
    /// Value of `failure()`: whether an earlier step has failed.
    pub failed: bool,
    pub cancelled: bool,
}

/// Outputs and status of a step that has ended.
#[derive(Clone, Debug, Default)]
pub struct StepState {
    pub outputs: BTreeMap<String, Expanded>,
    pub status: Status,
}

/// Status of a step that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    #[default]
    Success,
    Failure,
    /// Not run, as its condition was false.
    Skipped,
}

/// A value, with the sensitive values it was derived from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expanded {
    pub value: Value,
    /// Names of the sensitive inputs and outputs it was derived from, such as `inputs.token`.
    pub secrets: BTreeSet<String>,
}

impl From<Value> for Expanded {
    fn from(value: Value) -> Self {
        Expanded { value, secrets: BTreeSet::new() }
    }
}
