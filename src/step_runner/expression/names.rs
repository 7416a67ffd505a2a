//! Resolution of names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::super::Value;

/// Valid first names of paths.
const ROOTS: [&str; 10] = [
    "env",
    "inputs",
    "vars",
    "job",
    "steps",
    "export_file",
    "output_file",
    "step_dir",
    "func_dir",
    "work_dir",
];

/// Reserved words of the language.
const RESERVED: [&str; 34] = [
    "array",
    "as",
    "break",
    "case",
    "const",
    "continue",
    "default",
    "else",
    "fallthrough",
    "float",
    "for",
    "func",
    "function",
    "goto",
    "if",
    "import",
    "in",
    "int",
    "let",
    "loop",
    "map",
    "namespace",
    "number",
    "object",
    "package",
    "range",
    "return",
    "string",
    "struct",
    "switch",
    "type",
    "var",
    "void",
    "while",
];

pub(super) fn is_root(name: &str) -> bool {
    ROOTS.contains(&name)
}

pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// What a path of names refers to: a value, or a namespace with members.
pub enum NameTarget<'c> {
    Text(&'c str),
    Texts(&'c BTreeMap<String, String>),
    Entries(&'c BTreeMap<String, Expanded>),
    Steps(&'c BTreeMap<String, StepState>),
    Step(&'c StepState),
    Value(Cow<'c, Value>),
}

impl<'c> NameTarget<'c> {
    pub(super) fn root(context: &'c Context, name: &str) -> Option<Self> {
        Some(match name {
            "env" => NameTarget::Texts(&context.env),
            "inputs" => NameTarget::Entries(&context.inputs),
            "vars" | "job" => NameTarget::Texts(&context.vars),
            "steps" => NameTarget::Steps(&context.steps),
            "export_file" => NameTarget::Text(&context.export_file),
            "output_file" => NameTarget::Text(&context.output_file),
            "step_dir" | "func_dir" => NameTarget::Text(&context.step_dir),
            "work_dir" => NameTarget::Text(&context.work_dir),
            _ => return None,
        })
    }

    /// Returns all members as an object, and collects the names of the sensitive ones: the object depends
    /// on each of them.
    pub fn object(self, secrets: &mut BTreeSet<String>) -> Value {
        match self {
            NameTarget::Text(text) => Value::String(text.to_owned()),
            NameTarget::Texts(texts) => {
                let text = |text: &String| Value::String(text.clone());
                Value::Object(
                    texts.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
                )
            }
            NameTarget::Entries(entries) => {
                let mut members = BTreeMap::new();
                for (name, entry) in entries {
                    secrets.extend(entry.secrets.iter().cloned());
                    members.insert(name.clone(), entry.value.clone());
                }
                Value::Object(members)
            }
            NameTarget::Steps(steps) => {
                let mut step = |step| NameTarget::Step(step).object(secrets);
                Value::Object(
                    steps.iter().map(|(name, value)| (name.clone(), step(value))).collect(),
                )
            }
            NameTarget::Step(step) => {
                let outputs = NameTarget::Entries(&step.outputs).object(secrets);
                let status = Value::String(step.status.name().to_owned());
                let members = [("outputs".to_owned(), outputs), ("status".to_owned(), status)];
                Value::Object(members.into())
            }
            NameTarget::Value(value) => value.into_owned(),
        }
    }

    /// Returns a member, and collects the names of sensitive values.
    pub fn member(self, name: &str, secrets: &mut BTreeSet<String>) -> Option<Self> {
        Some(match self {
            NameTarget::Texts(texts) => NameTarget::Text(texts.get(name)?),
            NameTarget::Entries(entries) => {
                let entry = entries.get(name)?;
                secrets.extend(entry.secrets.iter().cloned());
                NameTarget::Value(Cow::Borrowed(&entry.value))
            }
            NameTarget::Steps(steps) => NameTarget::Step(steps.get(name)?),
            NameTarget::Step(step) => match name {
                "outputs" => NameTarget::Entries(&step.outputs),
                "status" => NameTarget::Text(step.status.name()),
                _ => return None,
            },
            NameTarget::Value(Cow::Borrowed(Value::Object(members))) => {
                NameTarget::Value(Cow::Borrowed(members.get(name)?))
            }
            NameTarget::Value(Cow::Owned(Value::Object(mut members))) => {
                NameTarget::Value(Cow::Owned(members.remove(name)?))
            }
            NameTarget::Value(_) | NameTarget::Text(_) => return None,
        })
    }
}

/// Resolves a dotted path, whose names may contain any character but a dot.
pub fn find<'c>(
    context: &'c Context,
    path: &str,
    secrets: &mut BTreeSet<String>,
) -> Option<NameTarget<'c>> {
    let mut names = path.split('.');
    let root = NameTarget::root(context, names.next()?)?;
    names.try_fold(root, |place, name| place.member(name, secrets))
}

impl Status {
    /// Returns the name of the status in expressions.
    pub fn name(self) -> &'static str {
        match self {
            Status::Success => "success",
            Status::Failure => "failure",
            Status::Skipped => "skipped",
        }
    }
}

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
