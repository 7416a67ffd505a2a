//! Errors of a template, with their positions.

use std::fmt;

use oci_hooks_files::fs::ReadError;
use oci_hooks_yaml::{SourceLocation, TextPosition};

/// Errors of reading or merging a template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{place}: {problem}")]
    Invalid { place: SourceLocation, problem: Box<TemplateProblem> },
}

/// The problems that a template can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateProblem {
    #[error("is not UTF-8")]
    NotUtf8,
    #[error(transparent)]
    Yaml(#[from] oci_hooks_yaml::YamlProblem),
    #[error("empty template: expected `metadata` or `spec`, or `{{}}` to change nothing")]
    Empty,
    /// The file has more than one document.
    #[error("a second document begins here: expected one template in the file")]
    Documents,
    /// The document is an object that contains a template.
    #[error("not a template, but an object that contains one: the file must have only {place}")]
    Wrapped { place: String },
    #[error("{path} has no field `{name}`; {help}")]
    UnknownField {
        /// Path of the object with the unknown field.
        path: String,
        name: String,
        help: String,
    },
    /// A value has the wrong type.
    #[error("{path} must be {expected}, not {found}{}", if *quote { "; write it in quotes" } else { "" })]
    Type {
        path: String,
        expected: &'static str,
        found: &'static str,
        /// Set if quotes around the value would give it the expected type.
        quote: bool,
    },
    /// A value has the right type but is invalid.
    #[error("{path}: {message}")]
    Value { path: String, message: String },
    #[error("{path} needs `{field}`")]
    Missing { path: String, field: &'static str },
    /// Two volumes or containers have the same name.
    #[error("{path}: {what} name `{name}` is already used {}: use another name", EarlierPosition(*first))]
    DuplicateName {
        path: String,
        /// Kind of the named object: `volume`.
        what: &'static str,
        name: String,
        /// Position of the earlier name in the template; none if it is the hook's.
        first: Option<TextPosition>,
    },
    /// Two volumes are mounted at the same path.
    #[error("{path}: mount path {mount_path} is already used {}: use another path", EarlierPosition(*first))]
    DuplicateMount {
        path: String,
        /// Path in the container.
        mount_path: String,
        /// Position of the earlier mount in the template; none if it is the hook's.
        first: Option<TextPosition>,
    },
}

/// Formats the position of an earlier name or mount.
struct EarlierPosition(Option<TextPosition>);

impl fmt::Display for EarlierPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(position) => write!(f, "in line {}", position.line),
            None => f.write_str("by the hook"),
        }
    }
}

/// A problem and its position, before the name of the file is known.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct PositionedProblem {
    pub position: Option<TextPosition>,
    pub problem: TemplateProblem,
}

impl PositionedProblem {
    pub(super) fn new(position: impl Into<Option<TextPosition>>, problem: TemplateProblem) -> Self {
        PositionedProblem { position: position.into(), problem }
    }

    /// Returns the error with the file's name.
    pub(super) fn into_template_error(self, file: &str) -> TemplateError {
        let place = SourceLocation { file: file.to_owned(), position: self.position };
        TemplateError::Invalid { place, problem: Box::new(self.problem) }
    }
}

impl From<oci_hooks_yaml::YamlError> for PositionedProblem {
    fn from(error: oci_hooks_yaml::YamlError) -> Self {
        PositionedProblem::new(error.position, error.problem.into())
    }
}
