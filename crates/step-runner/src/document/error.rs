//! Errors in step files, with their location.

use oci_hooks_yaml::{SourceLocation, YamlField, YamlNode, YamlValue};

use super::super::DeclaredType;
use super::reference::ReferenceError;
use super::types::DEFINITION_KEYS;

/// An error in a step file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{location}: {}", message(path, problem))]
pub struct DocumentError {
    pub location: SourceLocation,
    /// Path of the value in its document, such as `run[0].step`; empty for the document itself.
    pub path: String,
    pub problem: Box<DocumentProblem>,
}

impl DocumentError {
    /// Returns the message with line and column but without the file name, for output that names
    /// the file already.
    pub fn message_without_file(&self) -> String {
        let message = message(&self.path, &self.problem);
        match self.location.position {
            Some(at) => format!("line {}, column {}: {message}", at.line, at.column),
            None => message,
        }
    }
}

/// Returns the message about a problem of the value at `path`, without file name, line and column.
pub fn message(path: &str, problem: &DocumentProblem) -> String {
    if path.is_empty() { problem.to_string() } else { format!("{path}: {problem}") }
}

/// Kinds of errors in step files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DocumentProblem {
    #[error(transparent)]
    Yaml(#[from] oci_hooks_yaml::YamlProblem),
    /// The file has no document.
    #[error("no YAML document: expected two, `spec: {{}}` and, after a line `---`, the definition")]
    Empty,
    /// The file has no second document.
    #[error("missing second document: expected `exec` or `run` after a line `---`")]
    NoDefinition,
    /// The only document of the file is a definition.
    #[error("missing first document: put `spec: {{}}` and a line `---` before this one")]
    NoSpec,
    /// A document of another format, such as `.gitlab-ci.yml`.
    #[error(transparent)]
    Foreign(#[from] ForeignFormat),
    /// A key that the format does not have.
    #[error("unknown key `{name}`: {hint}")]
    UnknownKey { name: String, hint: String },
    /// Two keys that exclude each other.
    #[error("`{first}` and `{second}` are mutually exclusive: remove one of them")]
    Exclusive { first: &'static str, second: &'static str },
    /// A required key is missing.
    #[error("missing {0}")]
    Missing(&'static str),
    /// A value of the wrong type.
    #[error("expected {expected}, got {found}{}", if *quote { ": put it in quotes" } else { "" })]
    Type {
        expected: &'static str,
        found: &'static str,
        /// If set, quoting the value fixes the error.
        quote: bool,
    },
    /// A number without a JSON representation, such as infinity.
    #[error("number {0} cannot be represented in JSON: put it in quotes if it is a string")]
    NotFinite(String),
    /// A value that must not be empty.
    #[error("must not be empty")]
    EmptyValue,
    #[error("invalid name `{0}`: expected letters, digits and `_`, not starting with a digit")]
    Name(String),
    /// A type that the format does not have.
    #[error("unknown type `{name}`: {hint}")]
    UnknownType { name: String, hint: String },
    /// A default value that is not of the declared type.
    #[error("expected the declared type {declared}, got {found}")]
    Default { declared: DeclaredType, found: &'static str },
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// Keys from other formats, and their replacements in step files.
const FOREIGN_KEYS: [(&str, &str); 22] = [
    ("uses", "write `step`, for example `step: ./dir` or `step: gitlab.com/group/project@v1`"),
    ("with", "write `inputs`"),
    ("steps", "write `run`, a list of steps"),
    ("run", "write `script` for commands; `run` is the list of steps of a file"),
    ("args", "write them in `exec.command`, or as `inputs` of a step"),
    ("entrypoint", "write `exec.command`"),
    ("cmd", "write `exec.command`"),
    ("id", "write `name`, by which later steps refer to the outputs"),
    (
        "shell",
        "`script` runs in bash, or in sh if bash is missing; write `exec.command` for other shells",
    ),
    ("working-directory", "write `cd` in the script, or `exec.work_dir` in a step file"),
    ("before_script", "write a step before this one"),
    ("after_script", "write a step after this one, with `if: always()`"),
    ("when", "write `if`, for example `if: always()` or `if: failure()`"),
    ("allow_failure", "write `continue_on_error: true`"),
    ("variables", "write `env`"),
    ("environment", "write `env`"),
    ("rules", "write `if` in a step; `rules` belongs to the job in .gitlab-ci.yml"),
    ("image", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("stage", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("services", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("artifacts", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("cache", "it belongs to the job in .gitlab-ci.yml, not to a step"),
];

/// Returns a hint with the replacement for a key of another format; `None` for other keys.
pub fn foreign_hint(name: &str) -> Option<String> {
    let word = FOREIGN_KEYS.iter().find(|(word, _)| *word == name);
    word.map(|(_, hint)| (*hint).to_owned())
}

/// A format that users confuse with that of step files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignFormat {
    #[error(
        "this is a .gitlab-ci.yml, not a step file: in a job write `run:` with steps such as \
         `{{name: build, step: ./build}}`, and in ./build/step.yml what the step does. To run the steps of a job here, set \
         the variable STEPS to the job's `run:` list: STEPS='[{{name: build, step: ./build}}]' step-runner ci"
    )]
    GitLabCi,
    #[error(
        "this is a workflow or action of GitHub, not a step file: write `spec:` with the inputs, a line `---`, and \
         `run:` with steps that have `name` and `script`"
    )]
    GitHub,
}

/// Keys at the top of `.gitlab-ci.yml`.
const PIPELINE: [&str; 8] = [
    "after_script",
    "before_script",
    "default",
    "image",
    "include",
    "stages",
    "variables",
    "workflow",
];

const JOB: [&str; 6] = ["extends", "run", "script", "stage", "trigger", "before_script"];

/// Returns the format of a document that is not part of a step file, and the key that identifies
/// the format. Returns `None` if no such key is found.
pub fn foreign_format(root: &YamlNode) -> Option<(ForeignFormat, &YamlField)> {
    let fields = root.fields();
    let has = |name: &str| fields.iter().any(|field| field.name == name);
    let is_workflow = has("jobs") && has("on") || has("runs");
    let is_github = |field: &&YamlField| matches!(field.name.as_str(), "jobs" | "runs");
    if is_workflow && let Some(field) = fields.iter().find(is_github) {
        return Some((ForeignFormat::GitHub, field));
    }
    let is_job = |field: &YamlField| {
        let fields = field.node.fields();
        fields.iter().any(|field| {
            JOB.contains(&field.name.as_str())
                && matches!(
                    field.node.value,
                    YamlValue::Text(_) | YamlValue::List(_) | YamlValue::Map(_)
                )
        })
    };
    let is_steps = |name: &str| name == "spec" || DEFINITION_KEYS.contains(&name);
    let mut strange = fields.iter().filter(|field| !is_steps(&field.name));
    let field = strange.find(|field| PIPELINE.contains(&&*field.name) || is_job(field))?;
    Some((ForeignFormat::GitLabCi, field))
}
