//! Text to a step file.

use super::error::{DocumentError, Problem};
use super::reader::{Fault, Reader};
use super::types::{Step, StepFile};
use crate::yaml::{Documents, Keys, Node};

/// What messages call a list of steps that is in no file.
const STEPS: &str = "STEPS";

impl StepFile {
    /// Reads a step file; `file` is what messages call it. What comes after the second document does
    /// not count.
    ///
    /// # Errors
    ///
    /// Fails if the text is no step file: see [`Problem`].
    pub fn parse(file: &str, text: &str) -> Result<Self, DocumentError> {
        let (step_file, faults) = match documents(text) {
            Ok((spec, definition)) => read(&spec, &definition),
            Err(fault) => return Err(fault.within(file)),
        };
        match faults.into_iter().next() {
            Some(fault) => Err(fault.within(file)),
            None => Ok(step_file),
        }
    }
}

/// Reads a bare list of steps, as `run` has it.
///
/// # Errors
///
/// Fails if the text is no list of steps: see [`Problem`].
pub fn parse_steps(text: &str) -> Result<Vec<Step>, DocumentError> {
    let root = match Documents::new(text, Keys::Strings).next() {
        Some(Ok(document)) => document.root,
        Some(Err(error)) => {
            return Err(Fault::of_text(error.position, error.problem.into()).within(STEPS));
        }
        None => return Err(Fault::of_text(None, Problem::EmptyValue).within(STEPS)),
    };
    let mut reader = Reader::default();
    let steps = reader.steps(&root);
    match reader.into_faults().into_iter().next() {
        Some(fault) => Err(fault.within(STEPS)),
        None => Ok(steps),
    }
}

/// Returns the two documents of a step file.
pub(super) fn documents(text: &str) -> Result<(Node, Node), Fault> {
    let mut documents = Documents::new(text, Keys::Strings);
    let mut next = |missing| match documents.next() {
        Some(Ok(document)) => Ok(document.root),
        Some(Err(error)) => Err(Fault::of_text(error.position, error.problem.into())),
        None => Err(Fault::of_text(None, missing)),
    };
    Ok((next(Problem::Empty)?, next(Problem::NoDefinition)?))
}

/// Reads the two documents and tells all that is wrong with them. Only if that is nothing, the step
/// file is what they say.
pub(super) fn read(spec: &Node, definition: &Node) -> (StepFile, Vec<Fault>) {
    let mut reader = Reader::default();
    let spec = reader.spec_document(spec);
    let definition = reader.definition(definition);
    (StepFile { spec, definition }, reader.into_faults())
}
