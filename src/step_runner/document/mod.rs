//! What a step is: the two YAML documents of a step file, and references to step files.
//!
//! A [`StepFile`] is read strictly: keys that do not exist are errors, with their place and the name
//! that was perhaps meant. Expressions are only looked at by [`lint`].

mod definition;
mod error;
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
pub use lint::{Finding, Severity, lint};
pub use parse::parse_steps;
pub use reference::ReferenceError;
pub use schema::schema;
pub use types::{
    Action, Definition, Exec, Input, Output, Outputs, Reference, Run, Spec, Step, StepFile,
};
