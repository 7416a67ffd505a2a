//! Step output files: outputs, and environment variables exported to later steps.
//!
//! Both contain one JSON object per line, `{"name": …, "value": …}`. The last value of a name wins.

mod error;
mod lines;
mod read;
#[cfg(test)]
mod tests;

pub use error::{FileError, KeyError, LineError};
pub use read::{MAX_BYTES, read_exports, read_outputs};
