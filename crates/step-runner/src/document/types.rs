//! Types of parsed and validated step files.

use std::collections::BTreeMap;

use super::super::{DeclaredType, ExprValue};

/// Default names of step files, the older name first.
pub const STEP_FILE_NAMES: [&str; 2] = ["step.yml", "func.yml"];

/// Size limit of a step file in bytes.
pub const MAX_BYTES: u64 = 4 << 20;

/// A step file: its declared inputs and outputs, and its definition.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    pub spec: StepSpec,
    pub definition: StepDefinition,
}

impl StepFile {
    /// Returns a step file that runs these steps, without inputs and outputs.
    pub fn of_steps(steps: Vec<StepCall>) -> Self {
        let run = RunAction { steps, outputs: BTreeMap::new(), delegate: None };
        let definition = StepDefinition { env: BTreeMap::new(), action: StepAction::Run(run) };
        StepFile { spec: StepSpec::default(), definition }
    }
}

/// Declared inputs and outputs of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepSpec {
    /// Declared inputs of the step by name.
    pub inputs: BTreeMap<String, ValueSpec>,
    pub outputs: OutputSpecs,
}

/// A declared input or output of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueSpec {
    pub kind: DeclaredType,
    /// Default value; without one, an input is required, and an output must be set by the step.
    pub default: Option<ExprValue>,
    /// If set, values are masked in logs.
    pub sensitive: bool,
    pub description: Option<String>,
}

impl ValueSpec {
    /// Returns the declaration of a value without a default, which is not sensitive.
    pub fn new(kind: DeclaredType) -> Self {
        ValueSpec { kind, default: None, sensitive: false, description: None }
    }
}

/// Declared outputs of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputSpecs {
    Declared(BTreeMap<String, ValueSpec>),
    /// The outputs of the nested step that [`RunAction::delegate`] names.
    Delegate,
}

impl Default for OutputSpecs {
    fn default() -> Self {
        OutputSpecs::Declared(BTreeMap::new())
    }
}

/// Keys of the second document of a step file, the definition.
pub const DEFINITION_KEYS: [&str; 5] = ["delegate", "env", "exec", "outputs", "run"];

/// Environment and action of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepDefinition {
    /// Environment variables to add, with unexpanded expressions.
    pub env: BTreeMap<String, String>,
    /// Action of the step: a command, or other steps.
    pub action: StepAction,
}

/// Action of a step: `exec` or `run`.
#[derive(Clone, Debug, PartialEq)]
pub enum StepAction {
    Exec(ExecCommand),
    Run(RunAction),
    /// A function of this program, for a built-in step, which has no step file.
    Builtin(BuiltinFunction),
}

/// A function of this program, which step files refer to as `builtin://NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltinFunction {
    /// Runs the text in the input `script` in a shell, as `SHELL -c SCRIPT`.
    Script {
        /// Path or name of the shell.
        shell: &'static str,
    },
    /// Runs the lines of a job's script in a shell, as GitLab Runner does.
    ScriptLegacy,
    /// Runs a whole job of GitLab Runner: sources, caches, scripts, artifacts.
    Concrete,
    /// Builds the OCI image of a function (a published step), and writes it to an archive.
    FunctionOciBuild,
    /// Pushes the image in an archive to a registry.
    FunctionOciPublish,
}

impl BuiltinFunction {
    /// Names of the functions, as they follow `builtin://` in references.
    pub const NAMES: [&str; 5] =
        ["concrete", "function/oci/build", "function/oci/publish", "script", "script_legacy"];
}

/// `exec`: a command to execute, with unexpanded expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecCommand {
    /// Program and arguments; at least the program.
    pub command: Vec<String>,
    /// Working directory; by default that of the job.
    pub work_dir: Option<String>,
}

/// `run`: a sequence of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct RunAction {
    /// Step calls, at least one.
    pub steps: Vec<StepCall>,
    /// Outputs of the sequence by name, with unexpanded expressions.
    pub outputs: BTreeMap<String, ExprValue>,
    /// Name of the step whose outputs become those of the sequence.
    pub delegate: Option<String>,
}

/// A step call, with unexpanded expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCall {
    /// Name by which later steps refer to the outputs.
    pub name: String,
    /// Reference to the step file.
    pub reference: StepReference,
    pub env: BTreeMap<String, String>,
    pub inputs: BTreeMap<String, ExprValue>,
    /// `if`: the condition to run the step, with or without `${{ }}`.
    pub condition: Option<String>,
    /// `continue_on_error`: if set, later steps run even if this step failed.
    pub continue_on_error: bool,
}

impl StepCall {
    /// Returns an unconditional call without a name, variables and inputs.
    pub fn new(reference: StepReference) -> Self {
        StepCall {
            name: String::new(),
            reference,
            env: BTreeMap::new(),
            inputs: BTreeMap::new(),
            condition: None,
            continue_on_error: false,
        }
    }

    /// Returns the title of the step for users: its name, or else its reference.
    pub fn title(&self) -> String {
        match &self.reference {
            _ if !self.name.is_empty() => self.name.clone(),
            StepReference::Builtin { path } => path.join("/"),
            reference => reference.to_string(),
        }
    }
}

/// Reference to a step file.
#[derive(Clone, Debug, PartialEq)]
pub enum StepReference {
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
        /// File name; `None` means `step.yml`, then `func.yml`.
        filename: Option<String>,
    },
    Oci {
        /// Host of the registry, with an optional port.
        registry: String,
        repository: String,
        tag: String,
        path: Vec<String>,
        /// File name; `None` means `step.yml`, then `func.yml`.
        filename: Option<String>,
    },
    /// A step of this program: `builtin://`, formerly `dist://`.
    Builtin { path: Vec<String> },
    /// A reference with expressions; its kind is known only after their expansion.
    Dynamic(String),
}

/// Returns the JSON Schema (draft 2020-12) of step files, for editors.
///
/// The schema accepts either of the two documents; `#/$defs/spec_document` and `#/$defs/definition` accept
/// only one of them.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}
