//! Parses YAML to trees with the position of every node, in YAML 1.2 or as Go reads it ([`YamlDialect`]). The crate
//! does not write YAML, and does not convert trees to Rust types.
//!
//! The parser is safe for untrusted text: size and nesting are bounded. It is strict: duplicate keys, unknown tags and
//! keys that are lists or mappings are errors with their position.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod gopkg;
mod node;
mod read;
mod scalar;

pub use gopkg::{YamlDialect, boolean_text};
pub use node::{
    NodeSource, SourceLocation, TextPosition, YamlError, YamlField, YamlNode, YamlProblem,
    YamlValue, hint,
};
pub use read::{MAX_DEPTH, YamlDocument, YamlDocuments};
pub use scalar::resolve;
