//! Types of parsed and validated step files.

use std::collections::BTreeMap;

use super::super::{Type, Value};

/// A step file: its declared inputs and outputs, and its definition.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    pub spec: Spec,
    pub definition: Definition,
}

/// Declared inputs and outputs of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Declared inputs of the step by name.
    pub inputs: BTreeMap<String, Input>,
    pub outputs: Outputs,
}

/// A declared input of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub kind: Type,
    /// Default value; an input without one is required.
    pub default: Option<Value>,
    /// Whether values are masked in logs.
    pub sensitive: bool,
    pub description: Option<String>,
}

/// Declared outputs of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Outputs {
    Declared(BTreeMap<String, Output>),
    Delegate,
}

impl Default for Outputs {
    fn default() -> Self {
        Outputs::Declared(BTreeMap::new())
    }
}

/// A declared output of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub kind: Type,
    /// Default value; an output without one must be set by the step.
    pub default: Option<Value>,
    /// Whether values are masked in logs.
    pub sensitive: bool,
    pub description: Option<String>,
}

/// Keys of the second document, the definition.
pub const DEFINITION_KEYS: [&str; 5] = ["delegate", "env", "exec", "outputs", "run"];

/// Environment and action of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Environment variables to add, with unexpanded expressions.
    pub env: BTreeMap<String, String>,
    /// Executes a command, or runs other steps.
    pub action: Action,
}

/// What a step does: `exec` or `run`.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Exec(Exec),
    Run(Run),
    /// A function of this program. Step files refer to it; they do not contain it.
    Builtin(Builtin),
}

/// A function of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Builtin {
    /// Runs the text in the input `script` in a shell, as `SHELL -c SCRIPT`.
    Script {
        /// Path or name of the shell.
        shell: &'static str,
    },
    /// Runs the lines of a job's script in a shell, as GitLab Runner does.
    ScriptLegacy,
    /// Runs a whole job of GitLab Runner: sources, caches, scripts, artifacts.
    Concrete,
    /// Makes an image of a function, in an archive.
    FunctionOciBuild,
    /// Pushes such an archive to a registry.
    FunctionOciPublish,
}

/// `exec`: a command to execute, with unexpanded expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct Exec {
    /// Program and arguments; at least the program.
    pub command: Vec<String>,
    /// Working directory; by default that of the job.
    pub work_dir: Option<String>,
}

/// `run`: a sequence of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Step calls, at least one.
    pub steps: Vec<Step>,
    /// Outputs of the sequence by name, with unexpanded expressions.
    pub outputs: BTreeMap<String, Value>,
    /// Name of the step whose outputs become those of the sequence.
    pub delegate: Option<String>,
}

/// A step call, with unexpanded expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name by which later steps refer to the outputs.
    pub name: String,
    /// Reference to the step file.
    pub reference: Reference,
    pub env: BTreeMap<String, String>,
    pub inputs: BTreeMap<String, Value>,
    /// `if`: the condition to run the step, with or without `${{ }}`.
    pub condition: Option<String>,
    /// `continue_on_error`: whether later steps run although this one failed.
    pub continue_on_error: bool,
}

impl Step {
    /// Returns what a person knows the step by: its name, or else where it is.
    pub fn title(&self) -> String {
        match &self.reference {
            _ if !self.name.is_empty() => self.name.clone(),
            Reference::Builtin { path } => path.join("/"),
            reference => reference.to_string(),
        }
    }
}

/// Reference to a step file.
#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    /// On this host: an absolute path, or relative to the directory of the referring file.
    Local {
        /// Directory; the first segment is `.`, `..` or `/`.
        path: Vec<String>,
        /// File name; `None` means `step.yml`, then `func.yml`.
        filename: Option<String>,
    },
    Git {
        url: String,
        rev: String,
        path: Vec<String>,
        /// File name, as for [`Reference::Local`].
        filename: Option<String>,
    },
    Oci {
        /// Host of the registry, with its port.
        registry: String,
        repository: String,
        tag: String,
        path: Vec<String>,
        /// File name, as for [`Reference::Local`].
        filename: Option<String>,
    },
    /// A step of this program: `builtin://`, formerly `dist://`.
    Builtin { path: Vec<String> },
    /// A reference with expressions, known only when they are expanded.
    Dynamic(String),
}

/// Returns the JSON Schema (draft 2020-12) of step files, for editors.
///
/// It accepts either of the two documents; `#/$defs/spec_document` and `#/$defs/definition` accept one of
/// them.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}
