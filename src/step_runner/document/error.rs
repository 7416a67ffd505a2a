//! What is wrong with a step file, and where.

use super::super::Type;
use super::reference::ReferenceError;
use crate::yaml::{self, Place};

/// A step file cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{place}: {}{problem}", Prefix(path))]
pub struct DocumentError {
    /// Where.
    pub place: Place,
    /// The value in its document: `run[0].step`; empty for the document itself.
    pub path: String,
    /// What is wrong.
    pub problem: Box<Problem>,
}

struct Prefix<'a>(&'a str);

impl std::fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

/// What can be wrong in a step file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is not YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::Problem),
    /// There is no document in it.
    #[error(
        "holds no document; a step file has two: `spec: {{}}`, and after a line `---` what it does"
    )]
    Empty,
    /// There is no second document in it.
    #[error("the second document is missing: after a line `---` it has `exec` or `run`")]
    NoDefinition,
    /// A key that does not exist.
    #[error("there is no key `{name}` here; {help}")]
    UnknownKey {
        /// The key.
        name: String,
        /// What could be meant.
        help: String,
    },
    /// Two keys that exclude each other.
    #[error("there is `{first}` as well as `{second}`; remove one of them")]
    Exclusive {
        /// The one.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A key that has to be there is not.
    #[error("there must be {0}")]
    Missing(&'static str),
    /// A value of the wrong type.
    #[error("must be {expected}, not {found}{}", if *quote { "; write it in quotes" } else { "" })]
    Type {
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
        /// Whether quotes would make it right.
        quote: bool,
    },
    /// Something that must not be empty.
    #[error("must not be empty")]
    EmptyValue,
    /// A name that is none.
    #[error("`{0}` is no name: names have letters, digits and `_`, and do not begin with a digit")]
    Name(String),
    /// A type that does not exist.
    #[error("there is no type `{name}`; {help}")]
    UnknownType {
        /// The name.
        name: String,
        /// What could be meant.
        help: String,
    },
    /// A default of another type than is declared.
    #[error("must be of the declared type {declared}, not {found}")]
    Default {
        /// What is declared.
        declared: Type,
        /// What it is.
        found: &'static str,
    },
    /// A reference that is none.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}
