//! Errors in step files, with their location.

use super::super::Type;
use super::foreign::ForeignFormat;
use super::reference::ReferenceError;
use crate::yaml::{self, SourceLocation};

/// An error in a step file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{location}: {}{problem}", Prefix(path))]
#[non_exhaustive]
pub struct DocumentError {
    pub location: SourceLocation,
    /// Path of the value in its document, such as `run[0].step`; empty for the document itself.
    pub path: String,
    pub problem: Box<Problem>,
}

impl DocumentError {
    /// Returns the message without the name of the file, for where that is said already.
    pub fn without_file(&self) -> String {
        let problem = format!("{}{}", Prefix(&self.path), self.problem);
        match self.location.position {
            Some(at) => format!("line {}, column {}: {problem}", at.line, at.column),
            None => problem,
        }
    }
}

struct Prefix<'a>(&'a str);

impl std::fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

/// Kinds of errors in step files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error(transparent)]
    Yaml(#[from] yaml::Problem),
    /// The file has no document.
    #[error("no YAML document: expected two, `spec: {{}}` and, after a line `---`, the definition")]
    Empty,
    /// The file has no second document.
    #[error("missing second document: expected `exec` or `run` after a line `---`")]
    NoDefinition,
    /// The only document of the file is a definition.
    #[error("missing first document: put `spec: {{}}` and a line `---` before this one")]
    NoSpec,
    /// A document of another format.
    #[error(transparent)]
    Foreign(#[from] ForeignFormat),
    /// A key that the format does not have.
    #[error("unknown key `{name}`: {hint}")]
    UnknownKey { name: String, hint: String },
    /// Two keys that exclude each other.
    #[error("`{first}` and `{second}` are mutually exclusive: remove one of them")]
    Exclusive { first: &'static str, second: &'static str },
    /// A required key is missing.
    #[error("missing {0}")]
    Missing(&'static str),
    /// A value of the wrong type.
    #[error("expected {expected}, got {found}{}", if *quote { ": put it in quotes" } else { "" })]
    Type {
        expected: &'static str,
        found: &'static str,
        /// Whether quoting the value fixes it.
        quote: bool,
    },
    /// A number that JSON, and so a step, does not have.
    #[error("{0} is a number that steps cannot have: put it in quotes if it is a string")]
    NotFinite(String),
    /// A value that must not be empty.
    #[error("must not be empty")]
    EmptyValue,
    #[error("invalid name `{0}`: expected letters, digits and `_`, not starting with a digit")]
    Name(String),
    /// A type that the format does not have.
    #[error("unknown type `{name}`: {hint}")]
    UnknownType { name: String, hint: String },
    /// A default value that is not of the declared type.
    #[error("expected the declared type {declared}, got {found}")]
    Default { declared: Type, found: &'static str },
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}
