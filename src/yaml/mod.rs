//! YAML parser: trees with the position of every node, of YAML 1.2 or of what Go reads ([`Dialect`]).
//!
//! Safe for untrusted text: size and nesting are bounded. Strict: duplicate keys, unknown tags and keys
//! that are not strings are errors with their position.

mod gopkg;
mod node;
mod read;
mod scalar;

pub use gopkg::{Dialect, boolean_text};
pub use node::{Error, Field, Node, Position, Problem, Source, SourceLocation, Value, hint};
pub use read::{Document, Documents, MAX_DEPTH};
pub use scalar::resolve;
