//! The files in which a step says what it gives: outputs, and variables for the steps after it.
//!
//! Both hold an object of JSON a line, `{"name": …, "value": …}`. The last value of a name counts.

mod error;
mod lines;
mod read;
#[cfg(test)]
mod tests;

pub use error::{FileError, KeyFault, LineFault};
pub use read::{MAX_BYTES, read_exports, read_outputs};
