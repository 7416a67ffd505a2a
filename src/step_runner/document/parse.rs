//! Parsing step files and lists of steps.

use super::super::Value;
use super::error::{DocumentError, Problem};
use super::foreign;
use super::reader::{LocatedProblem, Reader};
use super::types::{Step, StepFile};
use crate::yaml::{Dialect, Documents, Node};

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
pub fn parse_value(text: &str) -> Result<Value, DocumentError> {
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
pub(super) fn documents(text: &str) -> Result<(Node, Node), LocatedProblem> {
    let mut documents = Documents::new(text, Dialect::Go);
    let mut next = || match documents.next() {
        Some(Ok(document)) => Ok(Some(document.root)),
        Some(Err(error)) => Err(LocatedProblem::of_text(error.position, error.problem.into())),
        None => Ok(None),
    };
    let of_text = |problem| LocatedProblem::of_text(None, problem);
    let first = next()?.ok_or_else(|| of_text(Problem::Empty))?;
    if let Some((format, field)) = foreign::format(&first) {
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
pub(super) fn read(spec: &Node, definition: &Node) -> (StepFile, Vec<LocatedProblem>) {
    let mut reader = Reader::default();
    let spec = reader.spec_document(spec);
    let definition = reader.definition(definition);
    (StepFile { spec, definition }, reader.into_problems())
}
