//! YAML 1.2 as people write it by hand: trees that know where every part stands.
//!
//! Reads text of strangers within bounds, strictly: duplicate keys, foreign tags and keys that are no
//! text are errors with their place. What the values mean is the reader's matter.

mod error;
mod node;
mod read;
mod scalar;

pub use error::{Error, Place, Position, Problem, help};
pub use node::{Field, Node, Source, Value};
pub use read::{Document, Documents, Keys, MAX_DEPTH};
pub use scalar::resolve;
