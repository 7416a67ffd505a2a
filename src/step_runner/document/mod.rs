//! Step files, which have two YAML documents, and references to step files.
//!
//! A [`StepFile`] is parsed strictly: unknown keys are errors with their position and a suggestion.
//! Expressions are checked only by [`lint`].

mod definition;
mod error;
mod foreign;
mod lint;
mod parse;
mod reader;
mod reference;
mod schema;
mod spec;
#[cfg(test)]
mod tests;
mod types;

pub use error::{DocumentError, Problem};
pub use foreign::ForeignFormat;
pub use lint::{Finding, Severity, lint};
pub use parse::{parse_call, parse_steps, parse_value};
pub use reader::is_name;
pub use reference::ReferenceError;
pub use schema::schema;
pub use types::{
    Action, Builtin, Definition, Exec, Input, Output, Outputs, Reference, Run, Spec, Step, StepFile,
};
