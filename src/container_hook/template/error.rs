//! What is wrong with a template, and where.

use std::fmt;

use crate::sys::fs::ReadError;

/// A place in a file. Lines and columns count from one, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A place in a file of which the name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as the caller named it.
    pub file: String,
    /// Where in it; none for the file as a whole.
    pub position: Option<Position>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{}:{position}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// A template cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What it says is wrong.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where.
        place: Place,
        /// What.
        problem: Box<Problem>,
    },
}

/// What can be wrong in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is no text.
    #[error("is not UTF-8")]
    NotUtf8,
    /// It is not YAML.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// There is no document in it.
    #[error(
        "holds no document; a template has `metadata` or `spec`, one that changes nothing is `{{}}`"
    )]
    Empty,
    /// There is more than one document in it.
    #[error("a second document begins here; a template is one")]
    Documents,
    /// Its values are nested in more than any pod is.
    #[error("is nested more than {0} deep, which no pod is")]
    TooDeep(usize),
    /// Aliases repeat too much.
    #[error("aliases make it too large; write out what is meant")]
    TooLarge,
    /// An alias is inside of what it stands for.
    #[error("this alias stands for something that it is in")]
    Recursive,
    /// A tag that does not belong to YAML's core schema.
    #[error("the tag {0} is unknown; leave it out")]
    Tag(String),
    /// A key that is a list or a mapping.
    #[error("a key must be a string, not {0}")]
    Key(&'static str),
    /// A key occurs twice in one mapping.
    #[error("the key `{name}` was there in line {}; remove one of them", first.line)]
    DuplicateKey {
        /// The key.
        name: String,
        /// Where it was first.
        first: Position,
    },
    /// A field that does not exist.
    #[error("{path} has no field `{name}`; {help}")]
    UnknownField {
        /// What has no such field.
        path: String,
        /// The field.
        name: String,
        /// What could be meant.
        help: String,
    },
    /// A value of the wrong type.
    #[error("{path} must be {expected}, not {found}{}", if *quote { "; write it in quotes" } else { "" })]
    Type {
        /// The field.
        path: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
        /// Whether quotes would make it right.
        quote: bool,
    },
    /// A value that has the right type and is wrong nevertheless.
    #[error("{path}: {message}")]
    Value {
        /// The field.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// A field that has to be there is not.
    #[error("{path} needs `{field}`")]
    Missing {
        /// What needs it.
        path: String,
        /// The field.
        field: &'static str,
    },
    /// Two things have the same name.
    #[error("{path}: there is {what} `{name}` {}; give it another name", Before(*first))]
    DuplicateName {
        /// The later one.
        path: String,
        /// What has the name: `a volume`.
        what: &'static str,
        /// The name.
        name: String,
        /// Where the template has the earlier one; none if it is the hook's own.
        first: Option<Position>,
    },
    /// Two volumes are mounted at the same path.
    #[error("{path}: something is mounted at {mount_path} {}; mount it at another path", Before(*first))]
    DuplicateMount {
        /// The later one.
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
pub(super) struct Fault {
    pub(super) position: Option<Position>,
    pub(super) problem: Problem,
}

impl Fault {
    pub(super) fn new(position: impl Into<Option<Position>>, problem: Problem) -> Self {
        Fault { position: position.into(), problem }
    }

    /// Returns the error with the file's name.
    pub(super) fn within(self, file: &str) -> TemplateError {
        let place = Place { file: file.to_owned(), position: self.position };
        TemplateError::Invalid { place, problem: Box::new(self.problem) }
    }
}
