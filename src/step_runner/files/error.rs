//! Errors in step output files, with the messages of GitLab's step runner: clients parse them.

use super::super::Type;

/// An error in an output file or export file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    #[error("read {file}: failed to unmarshal JSON at line {line}: {error}{}", Hint(hint))]
    Line {
        file: &'static str,
        line: usize,
        error: LineError,
        /// The line that was perhaps meant.
        hint: Option<String>,
    },
    /// A name or its value is invalid.
    #[error("read {file}: key {key:?}: {error}")]
    Key { file: &'static str, key: String, error: KeyError },
    /// The file is too large.
    #[error("read {file}: larger than {limit} bytes")]
    TooLarge {
        file: &'static str,
        /// Size limit of the file in bytes.
        limit: usize,
    },
}

struct Hint<'a>(&'a Option<String>);

impl std::fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_ref().map_or(Ok(()), |line| write!(f, ": write {line}"))
    }
}

/// Kinds of errors in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {character} {place}")]
    Character {
        /// The character, quoted as in Go.
        character: String,
        place: String,
    },
    #[error("exceeded max depth")]
    TooDeep,
    #[error("json: cannot unmarshal {0} into Go value of type runner.StepFileLine")]
    NoObject(&'static str),
    /// The name is not a string.
    #[error("json: cannot unmarshal {0} into Go struct field StepFileLine.name of type string")]
    Name(&'static str),
    #[error("json: cannot unmarshal number {0} into Go value of type float64")]
    Range(String),
    #[error("\"{0}\" field is missing")]
    Missing(&'static str),
    #[error("\"{0}\" field value is null")]
    Null(&'static str),
    #[error("\"{0}\" field value is empty")]
    Empty(&'static str),
}

/// Kinds of errors in a name or its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// An output that the step does not declare.
    #[error("unexpected output, remove from step outputs or define in step specification")]
    Unexpected,
    /// A value that is not of the declared type.
    #[error(
        "mismatched types, declared as \"{declared}\" in step specification and received from step as type \"{received}\""
    )]
    Type { declared: Type, received: Type },
    /// A declared output without value or default.
    #[error("missing output, add to step outputs or remove from step specification")]
    Missing,
    /// A value that cannot be an environment variable.
    #[error("cannot convert value type \"{0}\" to string")]
    NoText(Type),
}
