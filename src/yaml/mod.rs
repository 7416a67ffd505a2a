//! YAML 1.2 parser: trees with the position of every node.
//!
//! Safe for untrusted text: size and nesting are bounded. Strict: duplicate keys, unknown tags and keys
//! that are not strings are errors with their position.

mod error;
mod node;
mod read;
mod scalar;

pub use error::{Error, Position, Problem, SourceLocation, hint};
pub use node::{Field, Node, Source, Value};
pub use read::{Document, Documents, Keys, MAX_DEPTH};
pub use scalar::resolve;
