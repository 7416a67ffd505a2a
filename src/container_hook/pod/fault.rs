//! What of a template cannot be applied, and where it says so.

use std::fmt;
use std::sync::Arc;

use super::super::template::{Merged, Origin, Position};

/// Something in a template that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The template.
    pub file: String,
    /// Where in it; none if it is about something that the template does not say.
    pub position: Option<Position>,
    /// The field of the merged pod, as in `/spec/containers/0/securityContext/privileged`.
    pub path: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(position) = self.position {
            write!(f, ":{position}")?;
        }
        write!(f, ": {}: {}", self.path, self.problem)
    }
}

/// Everything in a template that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Faults(pub Vec<Fault>);

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Faults(vec![fault])
    }
}

/// A place in a merged pod.
#[derive(Clone, Debug)]
pub(super) struct Place {
    merged: Arc<Merged>,
    file: Arc<str>,
    path: String,
}

impl Place {
    /// Returns the place of the whole pod; `file` is the template.
    pub(super) fn top(merged: Arc<Merged>, file: &str) -> Self {
        Place { merged, file: file.into(), path: String::new() }
    }

    /// Goes to a field, or further down if it has slashes.
    pub(super) fn at(&self, field: &str) -> Self {
        Place {
            merged: Arc::clone(&self.merged),
            file: Arc::clone(&self.file),
            path: format!("{}/{field}", self.path),
        }
    }

    /// Goes to an item of a list.
    pub(super) fn item(&self, number: usize) -> Self {
        self.at(&number.to_string())
    }

    /// Goes to a key that anybody may have written.
    pub(super) fn key(&self, key: &str) -> Self {
        self.at(&key.replace('~', "~0").replace('/', "~1"))
    }

    /// Tells if it is the template that says what is here.
    pub(super) fn is_from_template(&self) -> bool {
        matches!(self.merged.origin(&self.path), Some(Origin::Template(_)))
    }

    /// Returns what is wrong here.
    pub(super) fn fault(&self, problem: impl Into<String>) -> Fault {
        // What is missing is missing from what is above it.
        let mut path = self.path.as_str();
        let position = loop {
            match (self.merged.origin(path), path.rsplit_once('/')) {
                (Some(Origin::Template(position)), _) => break Some(position),
                (_, Some((above, _))) => path = above,
                (_, None) => break None,
            }
        };
        let path = if self.path.is_empty() { "/" } else { &self.path };
        Fault {
            file: self.file.to_string(),
            position,
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}
