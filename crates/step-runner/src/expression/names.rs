//! Resolution of the names in expressions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::ExprValue;

/// Names with which paths may start, such as `inputs` in `inputs.version`.
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

/// The target to which a dotted path of names resolves: a value, or a namespace with members.
pub enum NameTarget<'c> {
    Text(&'c str),
    Texts(&'c BTreeMap<String, String>),
    Entries(&'c BTreeMap<String, ExpandedValue>),
    Steps(&'c BTreeMap<String, StepState>),
    Step(&'c StepState),
    Value(Cow<'c, ExprValue>),
}

impl<'c> NameTarget<'c> {
    pub(super) fn root(context: &'c ExprContext, name: &str) -> Option<Self> {
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

    /// Returns a namespace as an object with all members, and a value unchanged. Adds the names of
    /// sensitive members to `secrets`, as the object depends on all of them.
    pub fn object(self, secrets: &mut BTreeSet<String>) -> ExprValue {
        match self {
            NameTarget::Text(text) => ExprValue::String(text.to_owned()),
            NameTarget::Texts(texts) => {
                let text = |text: &String| ExprValue::String(text.clone());
                ExprValue::Object(
                    texts.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
                )
            }
            NameTarget::Entries(entries) => {
                let mut members = BTreeMap::new();
                for (name, entry) in entries {
                    secrets.extend(entry.secrets.iter().cloned());
                    members.insert(name.clone(), entry.value.clone());
                }
                ExprValue::Object(members)
            }
            NameTarget::Steps(steps) => {
                let mut step = |step| NameTarget::Step(step).object(secrets);
                ExprValue::Object(
                    steps.iter().map(|(name, value)| (name.clone(), step(value))).collect(),
                )
            }
            NameTarget::Step(step) => {
                let outputs = NameTarget::Entries(&step.outputs).object(secrets);
                let status = ExprValue::String(step.status.name().to_owned());
                let members = [("outputs".to_owned(), outputs), ("status".to_owned(), status)];
                ExprValue::Object(members.into())
            }
            NameTarget::Value(value) => value.into_owned(),
        }
    }

    /// Returns a member, and adds the names of the sensitive values in it to `secrets`.
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
            NameTarget::Value(Cow::Borrowed(ExprValue::Object(members))) => {
                NameTarget::Value(Cow::Borrowed(members.get(name)?))
            }
            NameTarget::Value(Cow::Owned(ExprValue::Object(mut members))) => {
                NameTarget::Value(Cow::Owned(members.remove(name)?))
            }
            NameTarget::Value(_) | NameTarget::Text(_) => return None,
        })
    }
}

/// Resolves a dotted path, whose names may contain any character but a dot. Adds the names of
/// sensitive values to `secrets`.
pub fn find<'c>(
    context: &'c ExprContext,
    path: &str,
    secrets: &mut BTreeSet<String>,
) -> Option<NameTarget<'c>> {
    let mut names = path.split('.');
    let root = NameTarget::root(context, names.next()?)?;
    names.try_fold(root, |place, name| place.member(name, secrets))
}

impl StepEndStatus {
    /// Returns the name of the status in expressions.
    pub fn name(self) -> &'static str {
        match self {
            StepEndStatus::Success => "success",
            StepEndStatus::Failure => "failure",
            StepEndStatus::Skipped => "skipped",
        }
    }
}

/// The names that expressions can refer to, with their values.
#[derive(Clone, Debug, Default)]
pub struct ExprContext {
    pub env: Arc<BTreeMap<String, String>>,
    /// `inputs`: inputs of the step.
    pub inputs: BTreeMap<String, ExpandedValue>,
    /// `vars`, formerly `job`: variables of the CI job.
    pub vars: Arc<BTreeMap<String, String>>,
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
    /// Value of `failure()`: set if an earlier step without `continue_on_error` has failed, or the
    /// job is cancelled.
    pub failed: bool,
    pub cancelled: bool,
}

/// Outputs and status of a step that has ended.
#[derive(Clone, Debug, Default)]
pub struct StepState {
    pub outputs: BTreeMap<String, ExpandedValue>,
    pub status: StepEndStatus,
}

/// Status of a step that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepEndStatus {
    #[default]
    Success,
    Failure,
    /// Not run, as its condition was false.
    Skipped,
}

/// A value, with the names of the sensitive values from which it was derived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpandedValue {
    pub value: ExprValue,
    /// Names of the sensitive inputs and outputs from which the value was derived, such as `inputs.token`.
    pub secrets: BTreeSet<String>,
}

impl From<ExprValue> for ExpandedValue {
    fn from(value: ExprValue) -> Self {
        ExpandedValue { value, secrets: BTreeSet::new() }
    }
}
