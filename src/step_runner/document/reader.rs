//! Values out of a tree. What is wrong is noted, and reading goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::Value as StepValue;
use super::error::{DocumentError, Problem};
use crate::yaml::{Field, Node, Place, Position, Value, help};

/// The most problems that are noted of one file. Nobody reads more of them at once.
const MAX_FAULTS: usize = 100;

/// A problem and where it is, before the name of the file is known.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) position: Option<Position>,
    pub(super) path: String,
    pub(super) problem: Problem,
}

impl Fault {
    /// Returns the fault of a text as a whole.
    pub(super) fn of_text(position: Option<Position>, problem: Problem) -> Self {
        Fault { position, path: String::new(), problem }
    }

    /// Returns the error with the file's name.
    pub(super) fn within(self, file: &str) -> DocumentError {
        let place = Place { file: file.to_owned(), position: self.position };
        DocumentError { place, path: self.path, problem: Box::new(self.problem) }
    }
}

/// Reads values, knows where it is, and notes what is wrong. What cannot be read is replaced by
/// something empty: no result counts unless there are no faults.
#[derive(Debug, Default)]
pub(super) struct Reader {
    path: String,
    faults: Vec<Fault>,
}

impl Reader {
    /// Returns what was wrong, in the order of the text.
    pub(super) fn into_faults(mut self) -> Vec<Fault> {
        self.faults.sort_by_key(|fault| fault.position);
        self.faults
    }

    /// Notes a problem of a value.
    pub(super) fn fault(&mut self, node: &Node, problem: impl Into<Problem>) {
        self.fault_at(node.origin.position, problem);
    }

    fn fault_at(&mut self, position: Position, problem: impl Into<Problem>) {
        if self.faults.len() < MAX_FAULTS {
            let path = self.path.clone();
            self.faults.push(Fault { position: Some(position), path, problem: problem.into() });
        }
    }

    /// Reads a value that is at `name` beneath this one.
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

    /// Reads the value of a key that is there and not null.
    pub(super) fn key<T>(
        &mut self,
        node: &Node,
        name: &str,
        read: impl FnOnce(&mut Self, &Node) -> T,
    ) -> Option<T> {
        let value = node.get(name)?;
        Some(self.at(name, |reader| read(reader, value)))
    }

    /// Tells if a value is a mapping; notes keys that are not among those known.
    pub(super) fn mapping(&mut self, node: &Node, known: &[&str]) -> bool {
        if !self.is_mapping(node) {
            return false;
        }
        for field in node.fields() {
            if !known.contains(&field.name.as_str()) && self.faults.len() < MAX_FAULTS {
                let help = help(&field.name, known)
                    .unwrap_or_else(|| format!("it has {}", known.join(", ")));
                self.unknown(field, help);
            }
        }
        true
    }

    /// Notes a key that does not exist.
    pub(super) fn unknown(&mut self, field: &Field, help: String) {
        let problem = Problem::UnknownKey { name: field.name.clone(), help };
        self.fault_at(field.origin.position, problem);
    }

    fn is_mapping(&mut self, node: &Node) -> bool {
        let is_mapping = matches!(node.value, Value::Map(_));
        if !is_mapping {
            self.wrong(node, "a mapping");
        }
        is_mapping
    }

    pub(super) fn wrong(&mut self, node: &Node, expected: &'static str) {
        self.fault(node, Problem::Type { expected, found: node.value.kind(), quote: false });
    }

    /// Notes that a mapping has not all that it must have; a key that is only written wrongly was
    /// noted already.
    pub(super) fn missing(&mut self, node: &Node, what: &'static str) {
        let is_typo = |fault: &Fault| {
            fault.path == self.path && matches!(fault.problem, Problem::UnknownKey { .. })
        };
        if !self.faults.iter().any(is_typo) {
            self.fault(node, Problem::Missing(what));
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

    /// Reads a mapping of any names to values of one kind.
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
                self.fault_at(field.origin.position, Problem::Name(name.clone()));
            }
            let value = self.at(name, |reader| read(reader, &field.node));
            values.insert(name.clone(), value);
        }
        values
    }

    /// Reads text; numbers, `true` and the like are text as they are written, null is none.
    pub(super) fn text(&mut self, node: &Node) -> String {
        match (&node.value, &node.origin.word) {
            (Value::Text(text), _) => text.clone(),
            (Value::Null, _) => String::new(),
            (Value::Bool(_) | Value::Number(_), Some(word)) => word.to_string(),
            (value, _) => {
                let quote = !matches!(value, Value::List(_) | Value::Map(_));
                let found = value.kind();
                self.fault(node, Problem::Type { expected: "a string", found, quote });
                String::new()
            }
        }
    }

    /// Reads text that must not be empty.
    pub(super) fn some_text(&mut self, node: &Node) -> String {
        let before = self.faults.len();
        let text = self.text(node);
        if text.is_empty() && self.faults.len() == before {
            self.fault(node, Problem::EmptyValue);
        }
        text
    }

    /// Reads a name.
    pub(super) fn name(&mut self, node: &Node) -> String {
        let name = self.some_text(node);
        if !name.is_empty() && !is_name(&name) {
            self.fault(node, Problem::Name(name.clone()));
        }
        name
    }

    /// Reads true or false.
    pub(super) fn flag(&mut self, node: &Node) -> bool {
        match node.value {
            Value::Bool(flag) => flag,
            _ => {
                self.wrong(node, "true or false");
                false
            }
        }
    }

    /// Reads names and texts.
    pub(super) fn env(&mut self, node: &Node) -> BTreeMap<String, String> {
        self.named(node, Self::text)
    }
}

/// Returns a value as it stands.
pub(super) fn value(node: &Node) -> StepValue {
    match &node.value {
        Value::Null => StepValue::Null,
        Value::Bool(flag) => StepValue::Bool(*flag),
        Value::Number(number) => {
            StepValue::Number(number.as_f64().expect("numbers are read as 64-bit ones"))
        }
        Value::Text(text) => StepValue::String(text.clone()),
        Value::List(items) => StepValue::Array(items.iter().map(value).collect()),
        Value::Map(fields) => StepValue::Object(
            fields.iter().map(|field| (field.name.clone(), value(&field.node))).collect(),
        ),
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
