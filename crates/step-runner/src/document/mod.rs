//! Step files, which have two YAML documents, and references to step files.
//!
//! A [`StepFile`] is parsed strictly: unknown keys are errors with their position and a suggestion.
//! Expressions are checked only by [`lint()`].

mod definition;
mod error;
mod lint;
mod reader;
mod reference;
#[cfg(test)]
mod tests;
mod types;

pub use error::{DocumentError, DocumentProblem, ForeignFormat};
pub use lint::{LintFinding, LintSeverity, lint};
pub use reader::{is_name, parse_call, parse_steps, parse_value};
pub use reference::ReferenceError;
pub use types::{
    BuiltinFunction, ExecCommand, MAX_BYTES, OutputSpecs, RunAction, STEP_FILE_NAMES, StepAction,
    StepCall, StepDefinition, StepFile, StepReference, StepSpec, ValueSpec, schema,
};
