//! What is worth saying about a merge that went well.

use std::fmt;

use crate::yaml::SourceLocation;

/// Something in a template that had not the effect one may think.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    pub place: SourceLocation,
    pub remark: Remark,
}

/// What there can be to say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark {
    /// A label by which the hook finds its containers was not changed.
    Reserved { label: String },
    /// A label or annotation has another value now.
    Replaced {
        /// `label` or `annotation`.
        what: &'static str,
        name: String,
    },
    /// A key at the top that says nothing to the hook.
    Top { key: String },
    /// A field of `metadata` that says nothing to the hook.
    Metadata { field: String },
    /// The image of a container is the workflow's.
    Image { container: String },
    /// There is no such service in this job.
    NoContainer {
        /// The name, with its dollar sign.
        name: String,
    },
    /// Another entry is for the same container already.
    Again {
        /// The name, with its dollar sign.
        name: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.remark)
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Reserved { label } => {
                write!(f, "the label {label} is the hook's own and stays as it is")
            }
            Remark::Replaced { what, name } => {
                write!(f, "the {what} {name} was there already and has this value now")
            }
            Remark::Top { key } => {
                write!(
                    f,
                    "{key} has no effect; metadata and spec have, and keys that begin with x- are \
                     for anchors"
                )
            }
            Remark::Metadata { field } => {
                write!(f, "metadata.{field} has no effect; labels and annotations have")
            }
            Remark::Image { container } => {
                write!(f, "the image of {container} has no effect: it is the workflow's")
            }
            Remark::NoContainer { name } => {
                write!(f, "{name} has no effect: this job has no such container")
            }
            Remark::Again { name } => {
                write!(f, "{name} has no effect: another entry is for the same container")
            }
        }
    }
}
