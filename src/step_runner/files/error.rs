//! What can be wrong with such a file, in the words that clients know from GitLab's step runner.

use super::super::Type;

/// A file that does not say what a step gives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A line is not what it should be.
    #[error("read {file}: failed to unmarshal JSON at line {line}: {fault}")]
    Line {
        /// Which of the files.
        file: &'static str,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        fault: LineFault,
    },
    /// A name, or its value, is not what it should be.
    #[error("read {file}: key {key:?}: {fault}")]
    Key {
        /// Which of the files.
        file: &'static str,
        /// The name.
        key: String,
        /// What is wrong.
        fault: KeyFault,
    },
    /// The file is too large.
    #[error("read {file}: larger than {limit} bytes")]
    TooLarge {
        /// Which of the files.
        file: &'static str,
        /// How large it may be.
        limit: usize,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// It ends too early.
    #[error("unexpected end of JSON input")]
    End,
    /// Something else should stand there.
    #[error("invalid character {character} {place}")]
    Character {
        /// What stands there, in quotes.
        character: String,
        /// Where it is.
        place: String,
    },
    /// Nested too deeply.
    #[error("exceeded max depth")]
    TooDeep,
    /// It is no object.
    #[error("json: cannot unmarshal {0} into Go value of type runner.StepFileLine")]
    NoObject(&'static str),
    /// The name is no string.
    #[error("json: cannot unmarshal {0} into Go struct field StepFileLine.name of type string")]
    Name(&'static str),
    /// A number that is too large.
    #[error("json: cannot unmarshal number {0} into Go value of type float64")]
    Range(String),
    /// There is no such field.
    #[error("\"{0}\" field is missing")]
    Missing(&'static str),
    /// The field is null.
    #[error("\"{0}\" field value is null")]
    Null(&'static str),
    /// The field is empty.
    #[error("\"{0}\" field value is empty")]
    Empty(&'static str),
}

/// What is wrong with a name, or its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// The step does not declare it.
    #[error("unexpected output, remove from step outputs or define in step specification")]
    Unexpected,
    /// The value is not of the declared type.
    #[error(
        "mismatched types, declared as \"{declared}\" in step specification and received from step as type \"{received}\""
    )]
    Type {
        /// What it should be.
        declared: Type,
        /// What it is.
        received: Type,
    },
    /// The step declares it, and gives none.
    #[error("missing output, add to step outputs or remove from step specification")]
    Missing,
    /// A variable can hold no such value.
    #[error("cannot convert value type \"{0}\" to string")]
    NoText(Type),
}
