//! The result of a merge.

use k8s_openapi::api::core::v1::Pod;
use oci_hooks_yaml::SourceLocation;

use super::emit::emit;
use super::node::{PodNode, ValueOrigin};

/// A pod with a template merged into it.
#[derive(Clone, Debug)]
pub struct MergedPod {
    pub pod: Pod,
    pub notes: Vec<MergeNote>,
    pub(super) file: String,
    pub(super) document: PodNode,
}

impl MergedPod {
    /// Returns the origin of the value at a JSON pointer into the pod, such as `/spec/volumes/0`; none if the
    /// value does not exist.
    pub fn origin(&self, pointer: &str) -> Option<ValueOrigin> {
        self.document.pointer(pointer).map(|node| node.origin)
    }

    /// Writes the pod as YAML.
    pub fn yaml(&self) -> String {
        emit(&self.document, &|_| None)
    }

    /// Writes the pod as YAML with a comment after each value about its origin.
    pub fn to_commented_yaml(&self) -> String {
        // A line break in the file name would end the comment.
        let file = self.file.replace(char::is_control, "?");
        emit(&self.document, &|origin| {
            Some(match origin {
                ValueOrigin::Default => "default".to_owned(),
                ValueOrigin::Request => "request".to_owned(),
                ValueOrigin::Given => "base".to_owned(),
                ValueOrigin::Template(position) => format!("{file}:{}", position.line),
            })
        })
    }
}

/// A note about a part of a template whose effect its author may not expect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {remark}")]
pub struct MergeNote {
    pub place: SourceLocation,
    pub remark: MergeRemark,
}

/// The unexpected effect of a part of a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeRemark {
    /// A label by which the hook finds its containers was not changed.
    #[error("the label {label} has no effect: it is reserved for the hook")]
    Reserved { label: String },
    /// The value of a label or annotation was replaced.
    #[error("the {what} {name} was already set; this value replaces it")]
    Replaced {
        /// `label` or `annotation`.
        what: &'static str,
        name: String,
    },
    /// A top-level key has no effect.
    #[error(
        "{key} has no effect; only metadata and spec are used, and keys that begin with x- are for anchors"
    )]
    Top { key: String },
    /// A field of `metadata` has no effect.
    #[error("metadata.{field} has no effect; only labels and annotations are used")]
    Metadata { field: String },
    /// The image of a container has no effect, because the workflow sets it.
    #[error("the image of {container} has no effect: the workflow sets it")]
    Image { container: String },
    /// An entry has no effect, because the job has no container of its name.
    #[error("{name} has no effect: this job has no such container")]
    NoContainer {
        /// Name with its dollar sign.
        name: String,
    },
    /// An entry has no effect, because another entry is used for the same container.
    #[error("{name} has no effect: another entry for the same container is used")]
    Again {
        /// Name with its dollar sign.
        name: String,
    },
}
