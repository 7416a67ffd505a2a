//! Reads typed values from a YAML tree. A problem is collected, and does not end the reading.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oci_hooks_yaml::{
    SourceLocation, TextPosition, YamlDialect, YamlDocuments, YamlField, YamlNode, YamlValue,
    boolean_text, hint,
};

use super::super::ExprValue;
use super::error::{DocumentError, DocumentProblem, foreign_format, foreign_hint};
use super::types::{StepCall, StepFile};

/// Maximum number of problems collected for one file.
const MAX_PROBLEMS: usize = 100;

/// A problem with its position, before the file name is known.
#[derive(Debug)]
pub struct LocatedProblem {
    position: Option<TextPosition>,
    path: String,
    problem: DocumentProblem,
}

impl LocatedProblem {
    /// Returns a problem of the text as a whole.
    fn of_text(position: Option<TextPosition>, problem: DocumentProblem) -> Self {
        LocatedProblem { position, path: String::new(), problem }
    }

    /// Adds the file name.
    pub fn into_document_error(self, file: &str) -> DocumentError {
        let location = SourceLocation { file: file.to_owned(), position: self.position };
        DocumentError { location, path: self.path, problem: Box::new(self.problem) }
    }
}

/// A reader that tracks the path of values and collects problems. Unreadable values are replaced by
/// empty ones: results are valid only if there are no problems.
#[derive(Debug, Default)]
pub struct StepFileReader {
    path: String,
    problems: Vec<LocatedProblem>,
}

impl StepFileReader {
    /// Returns the problems in the order of the text.
    pub(super) fn into_problems(mut self) -> Vec<LocatedProblem> {
        self.problems.sort_by_key(|problem| problem.position);
        self.problems
    }

    /// Collects a problem at the position of a value.
    pub(super) fn report(&mut self, node: &YamlNode, problem: impl Into<DocumentProblem>) {
        self.report_at(node.origin.position, problem);
    }

    pub(super) fn report_at(
        &mut self,
        position: TextPosition,
        problem: impl Into<DocumentProblem>,
    ) {
        if self.problems.len() < MAX_PROBLEMS {
            let path = self.path.clone();
            self.problems.push(LocatedProblem {
                position: Some(position),
                path,
                problem: problem.into(),
            });
        }
    }

    /// Calls `read` with `name` appended to the path.
    pub(super) fn read_at<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
        let value = read(self);
        self.path.truncate(length);
        value
    }

    /// Reads the value of a key; returns `None` if the key is missing or its value is null.
    pub(super) fn key<T>(
        &mut self,
        node: &YamlNode,
        name: &str,
        read: impl FnOnce(&mut Self, &YamlNode) -> T,
    ) -> Option<T> {
        let value = node.get(name)?;
        Some(self.read_at(name, |reader| read(reader, value)))
    }

    /// Returns whether a value is a mapping. Reports a value of another type, and keys that are not
    /// in `known`.
    pub(super) fn mapping(&mut self, node: &YamlNode, known: &[&str]) -> bool {
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

    pub(super) fn unknown(&mut self, field: &YamlField, hint: String) {
        let problem = DocumentProblem::UnknownKey { name: field.name.clone(), hint };
        self.report_at(field.origin.position, problem);
    }

    fn is_mapping(&mut self, node: &YamlNode) -> bool {
        let is_mapping = matches!(node.value, YamlValue::Map(_));
        if !is_mapping {
            self.report_wrong_type(node, "a mapping");
        }
        is_mapping
    }

    pub(super) fn report_wrong_type(&mut self, node: &YamlNode, expected: &'static str) {
        self.report(
            node,
            DocumentProblem::Type { expected, found: node.value.kind(), quote: false },
        );
    }

    /// Reports a missing key, unless an unknown key of the same mapping was reported: that is
    /// probably the missing key misspelled.
    pub(super) fn missing(&mut self, node: &YamlNode, what: &'static str) {
        let is_typo = |problem: &LocatedProblem| {
            problem.path == self.path
                && matches!(problem.problem, DocumentProblem::UnknownKey { .. })
        };
        if !self.problems.iter().any(is_typo) {
            self.report(node, DocumentProblem::Missing(what));
        }
    }

    /// Reads the elements of a list.
    pub(super) fn list<T>(
        &mut self,
        node: &YamlNode,
        mut read: impl FnMut(&mut Self, &YamlNode) -> T,
    ) -> Vec<T> {
        let YamlValue::List(items) = &node.value else {
            self.report_wrong_type(node, "a list");
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
    pub(super) fn read_named<T>(
        &mut self,
        node: &YamlNode,
        mut read: impl FnMut(&mut Self, &YamlNode) -> T,
    ) -> BTreeMap<String, T> {
        if !self.is_mapping(node) {
            return BTreeMap::new();
        }
        let mut values = BTreeMap::new();
        for field in node.fields() {
            let name = &field.name;
            if !is_name(name) {
                self.report_at(field.origin.position, DocumentProblem::Name(name.clone()));
            }
            let value = self.read_at(name, |reader| read(reader, &field.node));
            values.insert(name.clone(), value);
        }
        values
    }

    /// Reads text. Numbers and booleans are read as they are spelled, and null as empty text.
    pub(super) fn text(&mut self, node: &YamlNode) -> String {
        match (&node.value, &node.origin.word) {
            (YamlValue::Text(text), _) => text.clone(),
            (YamlValue::Null, _) => String::new(),
            (YamlValue::Bool(_) | YamlValue::Number(_), Some(word)) => word.to_string(),
            (value, _) => {
                let quote = !matches!(value, YamlValue::List(_) | YamlValue::Map(_));
                let found = value.kind();
                self.report(node, DocumentProblem::Type { expected: "a string", found, quote });
                String::new()
            }
        }
    }

    /// Reads text that must not be empty.
    pub(super) fn read_nonempty_text(&mut self, node: &YamlNode) -> String {
        let before = self.problems.len();
        let text = self.text(node);
        if text.is_empty() && self.problems.len() == before {
            self.report(node, DocumentProblem::EmptyValue);
        }
        text
    }

    /// Reads a name of letters, digits and `_`, which does not start with a digit.
    pub(super) fn name(&mut self, node: &YamlNode) -> String {
        let name = self.read_nonempty_text(node);
        if !name.is_empty() && !is_name(&name) {
            self.report(node, DocumentProblem::Name(name.clone()));
        }
        name
    }

    /// Reads a boolean: `true`, `false`, or a word of YAML 1.1 such as `yes` and `off`, as Go's
    /// `yaml.v3` does.
    pub(super) fn flag(&mut self, node: &YamlNode) -> bool {
        let flag = match &node.value {
            YamlValue::Bool(flag) => Some(*flag),
            YamlValue::Text(text) => boolean_text(text),
            _ => None,
        };
        flag.unwrap_or_else(|| {
            self.report_wrong_type(node, "true or false");
            false
        })
    }

    /// Reads a value of any type, without expanding expressions.
    pub(super) fn value(&mut self, node: &YamlNode) -> ExprValue {
        match &node.value {
            YamlValue::Null => ExprValue::Null,
            YamlValue::Bool(flag) => ExprValue::Bool(*flag),
            YamlValue::Number(number) => {
                ExprValue::Number(number.as_f64().expect("numbers are read as 64-bit ones"))
            }
            YamlValue::Text(text) => {
                if node.origin.word.is_some() {
                    self.report(node, DocumentProblem::NotFinite(text.clone()));
                }
                ExprValue::String(text.clone())
            }
            YamlValue::List(items) => {
                ExprValue::Array(items.iter().map(|item| self.value(item)).collect())
            }
            YamlValue::Map(fields) => ExprValue::Object(
                fields.iter().map(|field| (field.name.clone(), self.value(&field.node))).collect(),
            ),
        }
    }

    /// Reads a mapping of environment variables to texts.
    pub(super) fn env(&mut self, node: &YamlNode) -> BTreeMap<String, String> {
        self.read_named(node, Self::text)
    }
}

/// Returns whether a text can be the name of a step, an input or an output: letters, digits and `_`, not
/// starting with a digit.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Name that messages use in place of a file name for a list of steps without a file.
const STEPS: &str = "STEPS";

impl StepFile {
    /// Parses a step file; `file` is the file name in messages. Text after the second document is
    /// ignored.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a valid step file: see [`DocumentProblem`].
    pub fn parse(file: &str, text: &str) -> Result<Self, DocumentError> {
        let (step_file, problems) = match documents(text) {
            Ok((spec, definition)) => read(&spec, &definition),
            Err(problem) => return Err(problem.into_document_error(file)),
        };
        match problems.into_iter().next() {
            Some(problem) => Err(problem.into_document_error(file)),
            None => Ok(step_file),
        }
    }
}

/// Parses a list of steps without a file, in the format of the key `run`.
///
/// # Errors
///
/// Fails if the text is not a valid list of steps: see [`DocumentProblem`].
pub fn parse_steps(text: &str) -> Result<Vec<StepCall>, DocumentError> {
    read_only_document(STEPS, text, StepFileReader::steps)
}

/// Parses one step call, such as `step: ./build`, which may lack a name.
///
/// # Errors
///
/// Fails if the text is not a valid step call: see [`DocumentProblem`].
pub fn parse_call(text: &str) -> Result<StepCall, DocumentError> {
    read_only_document("the step", text, StepFileReader::call)
}

/// Parses a value as in step files, such as `010`, `yes` or `{a: [1]}`.
///
/// # Errors
///
/// Fails if the text is not YAML, or contains values that step files reject: see [`DocumentProblem`].
pub fn parse_value(text: &str) -> Result<ExprValue, DocumentError> {
    read_only_document("the value", text, StepFileReader::value)
}

/// Reads the first YAML document of a text; further documents are ignored. `name` replaces the file
/// name in messages.
fn read_only_document<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&mut StepFileReader, &YamlNode) -> T,
) -> Result<T, DocumentError> {
    let root = match YamlDocuments::new(text, YamlDialect::Go).next() {
        Some(Ok(document)) => document.root,
        Some(Err(error)) => {
            return Err(LocatedProblem::of_text(error.position, error.problem.into())
                .into_document_error(name));
        }
        None => {
            return Err(LocatedProblem::of_text(None, DocumentProblem::EmptyValue)
                .into_document_error(name));
        }
    };
    let mut reader = StepFileReader::default();
    let found = read(&mut reader, &root);
    match reader.into_problems().into_iter().next() {
        Some(problem) => Err(problem.into_document_error(name)),
        None => Ok(found),
    }
}

/// Parses the two YAML documents of a step file: `spec`, and the definition.
pub fn documents(text: &str) -> Result<(YamlNode, YamlNode), LocatedProblem> {
    let mut documents = YamlDocuments::new(text, YamlDialect::Go);
    let mut next = || match documents.next() {
        Some(Ok(document)) => Ok(Some(document.root)),
        Some(Err(error)) => Err(LocatedProblem::of_text(error.position, error.problem.into())),
        None => Ok(None),
    };
    let of_text = |problem| LocatedProblem::of_text(None, problem);
    let first = next()?.ok_or_else(|| of_text(DocumentProblem::Empty))?;
    if let Some((format, field)) = foreign_format(&first) {
        return Err(LocatedProblem::of_text(Some(field.origin.position), format.into()));
    }
    match next()? {
        Some(second) => Ok((first, second)),
        None => {
            let is_definition = first.get("exec").or(first.get("run")).is_some();
            Err(match is_definition {
                true => {
                    LocatedProblem::of_text(Some(first.origin.position), DocumentProblem::NoSpec)
                }
                false => of_text(DocumentProblem::NoDefinition),
            })
        }
    }
}

/// Reads the two documents, and returns all problems. The step file is valid only if there are none.
pub fn read(spec: &YamlNode, definition: &YamlNode) -> (StepFile, Vec<LocatedProblem>) {
    let mut reader = StepFileReader::default();
    let spec = reader.spec_document(spec);
    let definition = reader.definition(definition);
    (StepFile { spec, definition }, reader.into_problems())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_are_plain() {
        for good in ["build", "a1", "a_b", "_a"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "1a", "a b", "..", "a-b", "ä"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
