//! The documents, read and checked.

use std::collections::BTreeMap;

use super::super::{Type, Value};

/// A step file: what a step takes and gives, and what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    /// The first document.
    pub spec: Spec,
    /// The second document.
    pub definition: Definition,
}

/// What a step takes and gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// What it takes, by name.
    pub inputs: BTreeMap<String, Input>,
    /// What it gives.
    pub outputs: Outputs,
}

/// An input.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// What values must be.
    pub kind: Type,
    /// The value if none is given; without one the input is required.
    pub default: Option<Value>,
    /// Whether values must not be seen in a log.
    pub sensitive: bool,
    /// What it is for.
    pub description: Option<String>,
}

/// What a step gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Outputs {
    /// These, by name.
    Declared(BTreeMap<String, Output>),
    /// What another step gives.
    Delegate,
}

impl Default for Outputs {
    fn default() -> Self {
        Outputs::Declared(BTreeMap::new())
    }
}

/// An output.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// What values must be.
    pub kind: Type,
    /// The value if the step gives none; without one it must.
    pub default: Option<Value>,
    /// Whether values must not be seen in a log.
    pub sensitive: bool,
    /// What it is.
    pub description: Option<String>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Variables that are added to the environment; expressions are not replaced yet.
    pub env: BTreeMap<String, String>,
    /// What it does with them.
    pub action: Action,
}

/// What a step does with its environment.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// `exec`: executes a command.
    Exec(Exec),
    /// `run`: runs other steps.
    Run(Run),
}

/// A command. Expressions are not replaced yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Exec {
    /// The program and its arguments; at least the program.
    pub command: Vec<String>,
    /// Where it is executed, if not where the job is.
    pub work_dir: Option<String>,
}

/// Steps, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The steps; at least one.
    pub steps: Vec<Step>,
    /// What the whole gives, by name; expressions are not replaced yet.
    pub outputs: BTreeMap<String, Value>,
    /// The step whose outputs are those of the whole.
    pub delegate: Option<String>,
}

/// The call of a step. Expressions are not replaced yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The name, by which later steps find the outputs.
    pub name: String,
    /// Where the step file is.
    pub reference: Reference,
    /// Variables that are added to the environment.
    pub env: BTreeMap<String, String>,
    /// Values for its inputs.
    pub inputs: BTreeMap<String, Value>,
    /// `if`: the expression that decides whether it runs, with or without `${{ }}` around it.
    pub condition: Option<String>,
    /// `continue_on_error`: whether the steps after it run although it failed.
    pub continue_on_error: bool,
}

/// Where a step file is.
#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    /// On this machine, beneath the directory of the file that names it, or anywhere.
    Local {
        /// The directory; the first segment is `.`, `..` or `/`.
        path: Vec<String>,
        /// The file; none if none is named: `step.yml`, then `func.yml`.
        filename: Option<String>,
    },
    /// In a git repository.
    Git {
        /// The repository.
        url: String,
        /// A tag, a branch or a commit.
        rev: String,
        /// The directory in it.
        path: Vec<String>,
        /// The file, as for [`Reference::Local`].
        filename: Option<String>,
    },
    /// In a container image.
    Oci {
        /// The registry, with its port.
        registry: String,
        /// The repository.
        repository: String,
        /// The tag or the digest.
        tag: String,
        /// The directory in it.
        path: Vec<String>,
        /// The file, as for [`Reference::Local`].
        filename: Option<String>,
    },
    /// In this program: `dist://` and `builtin://`.
    Builtin {
        /// Its name; `script` for example.
        path: Vec<String>,
    },
    /// Known only when the expressions in it are replaced.
    Dynamic(String),
}
