//! Typed values from a YAML tree. Problems are collected, and reading continues.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::Value as StepValue;
use super::error::{DocumentError, Problem, foreign_format, foreign_hint};
use super::types::{Step, StepFile};
use crate::yaml::{
    Dialect, Documents, Field, Node, Position, SourceLocation, Value, boolean_text, hint,
};

/// Limit of the problems collected for one file.
const MAX_PROBLEMS: usize = 100;

/// A problem with its position, before the file name is known.
#[derive(Debug)]
pub struct LocatedProblem {
    position: Option<Position>,
    path: String,
    problem: Problem,
}

impl LocatedProblem {
    /// Returns a problem of the text as a whole.
    fn of_text(position: Option<Position>, problem: Problem) -> Self {
        LocatedProblem { position, path: String::new(), problem }
    }

    /// Adds the file name.
    pub fn within(self, file: &str) -> DocumentError {
        let location = SourceLocation { file: file.to_owned(), position: self.position };
        DocumentError { location, path: self.path, problem: Box::new(self.problem) }
    }
}

/// Reads values, tracks their path, and collects problems. What cannot be read is replaced by an empty
/// value: results are valid only if there are no problems.
#[derive(Debug, Default)]
pub struct Reader {
    path: String,
    problems: Vec<LocatedProblem>,
}

impl Reader {
    /// Returns the problems in the order of the text.
    pub(super) fn into_problems(mut self) -> Vec<LocatedProblem> {
        self.problems.sort_by_key(|problem| problem.position);
        self.problems
    }

    /// Collects a problem of a value.
    pub(super) fn report(&mut self, node: &Node, problem: impl Into<Problem>) {
        self.report_at(node.origin.position, problem);
    }

    pub(super) fn report_at(&mut self, position: Position, problem: impl Into<Problem>) {
        if self.problems.len() < MAX_PROBLEMS {
            let path = self.path.clone();
            self.problems.push(LocatedProblem {
                position: Some(position),
                path,
                problem: problem.into(),
            });
        }
    }

    /// Reads the value at key `name` below this one.
    pub(super) fn at<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
        let value = read(self);
        self.path.truncate(length);
        value
    }

    /// Reads the value of a key that exists and is not null.
    pub(super) fn key<T>(
        &mut self,
        node: &Node,
        name: &str,
        read: impl FnOnce(&mut Self, &Node) -> T,
    ) -> Option<T> {
        let value = node.get(name)?;
        Some(self.at(name, |reader| read(reader, value)))
    }

    /// Returns whether a value is a mapping; collects unknown keys.
    pub(super) fn mapping(&mut self, node: &Node, known: &[&str]) -> bool {
        if !self.is_mapping(node) {
            return false;
        }
        for field in node.fields() {
            if !known.contains(&field.name.as_str()) && self.problems.len() < MAX_PROBLEMS {
                let hint = foreign_hint(&field.name)
                    .or_else(|| hint(&field.name, known))
                    .unwrap_or_else(|| format!("expected one of {}", known.join(", ")));
                self.unknown(field, hint);
            }
        }
        true
    }

    /// Collects an unknown key.
    pub(super) fn unknown(&mut self, field: &Field, hint: String) {
        let problem = Problem::UnknownKey { name: field.name.clone(), hint };
        self.report_at(field.origin.position, problem);
    }

    fn is_mapping(&mut self, node: &Node) -> bool {
        let is_mapping = matches!(node.value, Value::Map(_));
        if !is_mapping {
            self.wrong(node, "a mapping");
        }
        is_mapping
    }

    pub(super) fn wrong(&mut self, node: &Node, expected: &'static str) {
        self.report(node, Problem::Type { expected, found: node.value.kind(), quote: false });
    }

    /// Collects a missing key, unless an unknown key of the same mapping was collected: that is probably
    /// the same one, misspelled.
    pub(super) fn missing(&mut self, node: &Node, what: &'static str) {
        let is_typo = |problem: &LocatedProblem| {
            problem.path == self.path && matches!(problem.problem, Problem::UnknownKey { .. })
        };
        if !self.problems.iter().any(is_typo) {
            self.report(node, Problem::Missing(what));
        }
    }

    /// Reads the elements of a list.
    pub(super) fn list<T>(
        &mut self,
        node: &Node,
        mut read: impl FnMut(&mut Self, &Node) -> T,
    ) -> Vec<T> {
        let Value::List(items) = &node.value else {
            self.wrong(node, "a list");
            return Vec::new();
        };
        let length = self.path.len();
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            write!(self.path, "[{index}]").expect("a string takes everything");
            values.push(read(self, item));
            self.path.truncate(length);
        }
        values
    }

    /// Reads a mapping of arbitrary names to values of one type.
    pub(super) fn named<T>(
        &mut self,
        node: &Node,
        mut read: impl FnMut(&mut Self, &Node) -> T,
    ) -> BTreeMap<String, T> {
        if !self.is_mapping(node) {
            return BTreeMap::new();
        }
        let mut values = BTreeMap::new();
        for field in node.fields() {
            let name = &field.name;
            if !is_name(name) {
                self.report_at(field.origin.position, Problem::Name(name.clone()));
            }
            let value = self.at(name, |reader| read(reader, &field.node));
            values.insert(name.clone(), value);
        }
        values
    }

    /// Reads text; numbers and booleans are read as they are spelled, null as the empty text.
    pub(super) fn text(&mut self, node: &Node) -> String {
        match (&node.value, &node.origin.word) {
            (Value::Text(text), _) => text.clone(),
            (Value::Null, _) => String::new(),
            (Value::Bool(_) | Value::Number(_), Some(word)) => word.to_string(),
            (value, _) => {
                let quote = !matches!(value, Value::List(_) | Value::Map(_));
                let found = value.kind();
                self.report(node, Problem::Type { expected: "a string", found, quote });
                String::new()
            }
        }
    }

    /// Reads text that must not be empty.
    pub(super) fn some_text(&mut self, node: &Node) -> String {
        let before = self.problems.len();
        let text = self.text(node);
        if text.is_empty() && self.problems.len() == before {
            self.report(node, Problem::EmptyValue);
        }
        text
    }

    /// Reads a name of letters, digits and `_`.
    pub(super) fn name(&mut self, node: &Node) -> String {
        let name = self.some_text(node);
        if !name.is_empty() && !is_name(&name) {
            self.report(node, Problem::Name(name.clone()));
        }
        name
    }

    /// Reads a boolean: `true` or `false`, and `yes` or `no` as Go reads them.
    pub(super) fn flag(&mut self, node: &Node) -> bool {
        let flag = match &node.value {
            Value::Bool(flag) => Some(*flag),
            Value::Text(text) => boolean_text(text),
            _ => None,
        };
        flag.unwrap_or_else(|| {
            self.wrong(node, "true or false");
            false
        })
    }

    /// Reads a value of any type, without expanding expressions.
    pub(super) fn value(&mut self, node: &Node) -> StepValue {
        match &node.value {
            Value::Null => StepValue::Null,
            Value::Bool(flag) => StepValue::Bool(*flag),
            Value::Number(number) => {
                StepValue::Number(number.as_f64().expect("numbers are read as 64-bit ones"))
            }
            Value::Text(text) => {
                if node.origin.word.is_some() {
                    self.report(node, Problem::NotFinite(text.clone()));
                }
                StepValue::String(text.clone())
            }
            Value::List(items) => {
                StepValue::Array(items.iter().map(|item| self.value(item)).collect())
            }
            Value::Map(fields) => StepValue::Object(
                fields.iter().map(|field| (field.name.clone(), self.value(&field.node))).collect(),
            ),
        }
    }

    /// Reads a mapping of environment variables.
    pub(super) fn env(&mut self, node: &Node) -> BTreeMap<String, String> {
        self.named(node, Self::text)
    }
}

/// Returns whether a text can be the name of a step, an input or an output: letters, digits and `_`, no
/// digit first.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The file name of a bare list of steps in messages.
const STEPS: &str = "STEPS";

impl StepFile {
    /// Parses a step file; `file` is the file name in messages. Text after the second document is
    /// ignored.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a valid step file: see [`Problem`].
    pub fn parse(file: &str, text: &str) -> Result<Self, DocumentError> {
        let (step_file, problems) = match documents(text) {
            Ok((spec, definition)) => read(&spec, &definition),
            Err(problem) => return Err(problem.within(file)),
        };
        match problems.into_iter().next() {
            Some(problem) => Err(problem.within(file)),
            None => Ok(step_file),
        }
    }
}

/// Parses a bare list of steps, the value of `run`.
///
/// # Errors
///
/// Fails if the text is not a valid list of steps: see [`Problem`].
pub fn parse_steps(text: &str) -> Result<Vec<Step>, DocumentError> {
    only(STEPS, text, Reader::steps)
}

/// Parses one step call, such as `step: ./build`, which may lack a name.
///
/// # Errors
///
/// Fails if the text is not a valid step call: see [`Problem`].
pub fn parse_call(text: &str) -> Result<Step, DocumentError> {
    only("the step", text, Reader::call)
}

/// Parses a value as step files have it, such as `010`, `yes` or `{a: [1]}`.
///
/// # Errors
///
/// Fails if the text is not YAML, or has what steps cannot have: see [`Problem`].
pub fn parse_value(text: &str) -> Result<StepValue, DocumentError> {
    only("the value", text, Reader::value)
}

/// Reads the only document of a text; what follows it is ignored.
fn only<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&mut Reader, &Node) -> T,
) -> Result<T, DocumentError> {
    let root = match Documents::new(text, Dialect::Go).next() {
        Some(Ok(document)) => document.root,
        Some(Err(error)) => {
            return Err(LocatedProblem::of_text(error.position, error.problem.into()).within(name));
        }
        None => return Err(LocatedProblem::of_text(None, Problem::EmptyValue).within(name)),
    };
    let mut reader = Reader::default();
    let found = read(&mut reader, &root);
    match reader.into_problems().into_iter().next() {
        Some(problem) => Err(problem.within(name)),
        None => Ok(found),
    }
}

/// Parses the two YAML documents of a step file.
pub fn documents(text: &str) -> Result<(Node, Node), LocatedProblem> {
    let mut documents = Documents::new(text, Dialect::Go);
    let mut next = || match documents.next() {
        Some(Ok(document)) => Ok(Some(document.root)),
        Some(Err(error)) => Err(LocatedProblem::of_text(error.position, error.problem.into())),
        None => Ok(None),
    };
    let of_text = |problem| LocatedProblem::of_text(None, problem);
    let first = next()?.ok_or_else(|| of_text(Problem::Empty))?;
    if let Some((format, field)) = foreign_format(&first) {
        return Err(LocatedProblem::of_text(Some(field.origin.position), format.into()));
    }
    match next()? {
        Some(second) => Ok((first, second)),
        None => {
            let is_definition = first.get("exec").or(first.get("run")).is_some();
            Err(match is_definition {
                true => LocatedProblem::of_text(Some(first.origin.position), Problem::NoSpec),
                false => of_text(Problem::NoDefinition),
            })
        }
    }
}

/// Reads the two documents, and returns all problems. The step file is valid only if there are none.
pub fn read(spec: &Node, definition: &Node) -> (StepFile, Vec<LocatedProblem>) {
    let mut reader = Reader::default();
    let spec = reader.spec_document(spec);
    let definition = reader.definition(definition);
    (StepFile { spec, definition }, reader.into_problems())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["build", "a1", "a_b", "_a"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "1a", "a b", "..", "a-b", "ä"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
