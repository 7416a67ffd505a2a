//! Parsing step files and lists of steps.

use super::error::{DocumentError, Problem};
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
    let root = match Documents::new(text, Dialect::Go).next() {
        Some(Ok(document)) => document.root,
        Some(Err(error)) => {
            return Err(LocatedProblem::of_text(error.position, error.problem.into()).within(STEPS));
        }
        None => return Err(LocatedProblem::of_text(None, Problem::EmptyValue).within(STEPS)),
    };
    let mut reader = Reader::default();
    let steps = reader.steps(&root);
    match reader.into_problems().into_iter().next() {
        Some(problem) => Err(problem.within(STEPS)),
        None => Ok(steps),
    }
}

/// Parses the two YAML documents of a step file.
pub(super) fn documents(text: &str) -> Result<(Node, Node), LocatedProblem> {
    let mut documents = Documents::new(text, Dialect::Go);
    let mut next = |missing| match documents.next() {
        Some(Ok(document)) => Ok(document.root),
        Some(Err(error)) => Err(LocatedProblem::of_text(error.position, error.problem.into())),
        None => Err(LocatedProblem::of_text(None, missing)),
    };
    Ok((next(Problem::Empty)?, next(Problem::NoDefinition)?))
}

/// Reads the two documents, and returns all problems. The step file is valid only if there are none.
pub(super) fn read(spec: &Node, definition: &Node) -> (StepFile, Vec<LocatedProblem>) {
    let mut reader = Reader::default();
    let spec = reader.spec_document(spec);
    let definition = reader.definition(definition);
    (StepFile { spec, definition }, reader.into_problems())
}
