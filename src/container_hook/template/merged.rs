//! The result of a merge.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;

use super::emit::emit;
use super::node::{Node, Origin};
use crate::yaml::SourceLocation;

/// A pod with a template merged into it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Merged {
    pub pod: Pod,
    pub notes: Vec<Note>,
    pub(super) file: String,
    pub(super) document: Node,
}

impl Merged {
    /// Returns where the value at a JSON pointer into the pod came from, `/spec/volumes/0` for
    /// example; none if there is no such value.
    pub fn origin(&self, pointer: &str) -> Option<Origin> {
        self.document.pointer(pointer).map(|node| node.origin)
    }

    /// Writes the pod as YAML.
    pub fn yaml(&self) -> String {
        emit(&self.document, &|_| None)
    }

    /// Writes the pod as YAML with a comment after each value that says where it came from.
    pub fn explained(&self) -> String {
        // A comment ends with its line.
        let file = self.file.replace(char::is_control, "?");
        emit(&self.document, &|origin| Some(Explained { file: &file, origin }.to_string()))
    }
}

struct Explained<'a> {
    file: &'a str,
    origin: Origin,
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Default => f.write_str("default"),
            Origin::Request => f.write_str("request"),
            Origin::Given => f.write_str("base"),
            Origin::Template(position) => write!(f, "{}:{}", self.file, position.line),
        }
    }
}

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
