//! What is wrong with a template, and where.

use std::fmt;

use crate::sys::fs::ReadError;
use crate::yaml::{self, Position, SourceLocation};

/// A template cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What it says is wrong.
    #[error("{place}: {problem}")]
    Invalid { place: SourceLocation, problem: Box<Problem> },
}

/// What can be wrong in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("is not UTF-8")]
    NotUtf8,
    #[error(transparent)]
    Yaml(#[from] yaml::Problem),
    /// There is no document in it.
    #[error(
        "holds no document; a template has `metadata` or `spec`, one that changes nothing is `{{}}`"
    )]
    Empty,
    /// There is more than one document in it.
    #[error("a second document begins here; a template is one")]
    Documents,
    /// A field that does not exist.
    #[error("{path} has no field `{name}`; {help}")]
    UnknownField {
        /// What has no such field.
        path: String,
        name: String,
        help: String,
    },
    /// A value of the wrong type.
    #[error("{path} must be {expected}, not {found}{}", if *quote { "; write it in quotes" } else { "" })]
    Type {
        path: String,
        expected: &'static str,
        found: &'static str,
        /// Whether quotes would make it right.
        quote: bool,
    },
    /// A value that has the right type and is wrong nevertheless.
    #[error("{path}: {message}")]
    Value { path: String, message: String },
    /// A field that has to be there is not.
    #[error("{path} needs `{field}`")]
    Missing { path: String, field: &'static str },
    /// Two things have the same name.
    #[error("{path}: there is {what} `{name}` {}; give it another name", Before(*first))]
    DuplicateName {
        path: String,
        /// What has the name: `a volume`.
        what: &'static str,
        name: String,
        /// Where the template has the earlier one; none if it is the hook's own.
        first: Option<Position>,
    },
    /// Two volumes are mounted at the same path.
    #[error("{path}: something is mounted at {mount_path} {}; mount it at another path", Before(*first))]
    DuplicateMount {
        path: String,
        /// The path in the container.
        mount_path: String,
        /// Where the template has the earlier one; none if it is the hook's own.
        first: Option<Position>,
    },
}

/// Says where something was before.
struct Before(Option<Position>);

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(position) => write!(f, "already, in line {}", position.line),
            None => f.write_str("already, by the hook itself"),
        }
    }
}

/// A problem and where it is, before the name of the file is known.
#[derive(Debug)]
pub struct Fault {
    pub position: Option<Position>,
    pub problem: Problem,
}

impl Fault {
    pub(super) fn new(position: impl Into<Option<Position>>, problem: Problem) -> Self {
        Fault { position: position.into(), problem }
    }

    /// Returns the error with the file's name.
    pub(super) fn within(self, file: &str) -> TemplateError {
        let place = SourceLocation { file: file.to_owned(), position: self.position };
        TemplateError::Invalid { place, problem: Box::new(self.problem) }
    }
}

impl From<yaml::Error> for Fault {
    fn from(error: yaml::Error) -> Self {
        Fault::new(error.position, error.problem.into())
    }
}
