//! The result of a merge.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;

use super::emit::emit;
use super::node::Node;
use super::note::Note;
use super::origin::Origin;

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
