//! What of a template cannot be applied, and where it says so.

use std::fmt;
use std::sync::Arc;

use super::merged::Merged;
use super::node::Origin;
use crate::yaml::Position;

/// Something in a template that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
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

/// The path of a field in a merged pod.
#[derive(Clone, Debug)]
pub struct FieldPath {
    merged: Arc<Merged>,
    file: Arc<str>,
    path: String,
}

impl FieldPath {
    /// Returns the place of the whole pod; `file` is the template.
    pub fn top(merged: Arc<Merged>, file: &str) -> Self {
        FieldPath { merged, file: file.into(), path: String::new() }
    }

    /// Goes to a field, or further down if it has slashes.
    pub fn at(&self, field: &str) -> Self {
        FieldPath {
            merged: Arc::clone(&self.merged),
            file: Arc::clone(&self.file),
            path: format!("{}/{field}", self.path),
        }
    }

    /// Goes to an item of a list.
    pub fn item(&self, number: usize) -> Self {
        self.at(&number.to_string())
    }

    /// Goes to a key that anybody may have written.
    pub fn key(&self, key: &str) -> Self {
        self.at(&key.replace('~', "~0").replace('/', "~1"))
    }

    /// Returns whether the value is the template's.
    pub fn is_from_template(&self) -> bool {
        matches!(self.merged.origin(&self.path), Some(Origin::Template(_)))
    }

    /// Returns what is wrong here.
    pub fn fault(&self, problem: impl Into<String>) -> Fault {
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

#[cfg(test)]
pub mod tests {
    use serde_json::Value;

    use super::*;
    use crate::container_hook::template::{Base, Template};

    /// Merges a template into the smallest pod of a job.
    pub fn merged(template: &Value) -> (Arc<Merged>, FieldPath) {
        let base = Base::parse("pod", "spec: {containers: [{name: job, image: a}]}").unwrap();
        let template = Template::parse("/t", &template.to_string()).unwrap();
        let merged = Arc::new(template.merge_job(base).unwrap());
        let place = FieldPath::top(Arc::clone(&merged), "/t");
        (merged, place)
    }

    #[test]
    fn a_fault_has_the_position_of_what_the_template_says() {
        let base = Base::parse("pod", "spec: {containers: [{name: job, image: a}]}").unwrap();
        let text = "spec:\n  containers:\n  - name: $job\n    tty: true\n";
        let merged = Template::parse("/t", text).unwrap().merge_job(base).unwrap();
        let job = FieldPath::top(Arc::new(merged), "/t").at("spec/containers").item(0);
        let said = job.at("tty").fault("no").to_string();
        assert!(
            said.starts_with("/t:4:") && said.ends_with(": /spec/containers/0/tty: no"),
            "{said}"
        );
        assert!(job.at("tty").is_from_template() && !job.at("image").is_from_template());
        assert_eq!(job.at("env").fault("no").position, None);
    }
}
