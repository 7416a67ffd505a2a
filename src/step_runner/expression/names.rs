//! What names stand for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::super::Value;
use super::context::{Context, Expanded, Status, StepState};

/// The first names of paths.
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

/// Words that the language keeps for what it may become.
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

/// What names lead to: a value, or a place that has more names and is none itself.
pub(super) enum Place<'c> {
    Text(&'c str),
    Texts(&'c BTreeMap<String, String>),
    Entries(&'c BTreeMap<String, Expanded>),
    Steps(&'c BTreeMap<String, StepState>),
    Step(&'c StepState),
    Value(Cow<'c, Value>),
}

impl<'c> Place<'c> {
    pub(super) fn root(context: &'c Context, name: &str) -> Option<Self> {
        Some(match name {
            "env" => Place::Texts(&context.env),
            "inputs" => Place::Entries(&context.inputs),
            "vars" | "job" => Place::Texts(&context.vars),
            "steps" => Place::Steps(&context.steps),
            "export_file" => Place::Text(&context.export_file),
            "output_file" => Place::Text(&context.output_file),
            "step_dir" | "func_dir" => Place::Text(&context.step_dir),
            "work_dir" => Place::Text(&context.work_dir),
            _ => return None,
        })
    }

    /// Returns what a name leads to from here, and notes the secrets that are met.
    pub(super) fn member(self, name: &str, secrets: &mut BTreeSet<String>) -> Option<Self> {
        Some(match self {
            Place::Texts(texts) => Place::Text(texts.get(name)?),
            Place::Entries(entries) => {
                let entry = entries.get(name)?;
                secrets.extend(entry.secrets.iter().cloned());
                Place::Value(Cow::Borrowed(&entry.value))
            }
            Place::Steps(steps) => Place::Step(steps.get(name)?),
            Place::Step(step) => match name {
                "outputs" => Place::Entries(&step.outputs),
                "status" => Place::Text(step.status.name()),
                _ => return None,
            },
            Place::Value(Cow::Borrowed(Value::Object(members))) => {
                Place::Value(Cow::Borrowed(members.get(name)?))
            }
            Place::Value(Cow::Owned(Value::Object(mut members))) => {
                Place::Value(Cow::Owned(members.remove(name)?))
            }
            Place::Value(_) | Place::Text(_) => return None,
        })
    }
}

/// Returns what names with dots between them lead to, each of any other characters.
pub(super) fn find<'c>(
    context: &'c Context,
    path: &str,
    secrets: &mut BTreeSet<String>,
) -> Option<Place<'c>> {
    let mut names = path.split('.');
    let root = Place::root(context, names.next()?)?;
    names.try_fold(root, |place, name| place.member(name, secrets))
}

impl Status {
    /// Returns the status as expressions have it.
    pub fn name(self) -> &'static str {
        match self {
            Status::Success => "success",
            Status::Failure => "failure",
            Status::Skipped => "skipped",
        }
    }
}
