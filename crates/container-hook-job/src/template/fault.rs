//! Fields of a template that cannot be applied, with their positions.

use std::sync::Arc;

use oci_hooks_yaml::SourceLocation;

use super::merged::MergedPod;
use super::node::ValueOrigin;

/// A field of a template that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {path}: {problem}")]
pub struct TemplateFault {
    /// Template, and the position in it; without position if the field is not from the template.
    pub place: SourceLocation,
    /// JSON pointer to the field of the merged pod, such as `/spec/containers/0/securityContext/privileged`.
    pub path: String,
    /// Problem and hint.
    pub problem: String,
}

/// All fields of a template that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(TemplateFault::to_string).collect::<Vec<_>>().join("\n"))]
pub struct TemplateFaults(pub Vec<TemplateFault>);

impl From<TemplateFault> for TemplateFaults {
    fn from(fault: TemplateFault) -> Self {
        TemplateFaults(vec![fault])
    }
}

/// The path of a field in a merged pod.
#[derive(Clone, Debug)]
pub struct FieldPath {
    merged: Arc<MergedPod>,
    file: Arc<str>,
    path: String,
}

impl FieldPath {
    /// Returns the path of the whole pod; `file` is the template.
    pub fn top(merged: Arc<MergedPod>, file: &str) -> Self {
        FieldPath { merged, file: file.into(), path: String::new() }
    }

    /// Returns the path of a field, or of a nested field if `field` has slashes.
    pub fn at(&self, field: &str) -> Self {
        FieldPath {
            merged: Arc::clone(&self.merged),
            file: Arc::clone(&self.file),
            path: format!("{}/{field}", self.path),
        }
    }

    /// Returns the path of an item of a list.
    pub fn item(&self, number: usize) -> Self {
        self.at(&number.to_string())
    }

    /// Returns the path of an arbitrary key, escaped for the JSON pointer.
    pub fn key(&self, key: &str) -> Self {
        self.at(&key.replace('~', "~0").replace('/', "~1"))
    }

    /// Returns whether the value is from the template.
    pub fn is_from_template(&self) -> bool {
        matches!(self.merged.origin(&self.path), Some(ValueOrigin::Template(_)))
    }

    /// Returns a fault at this path.
    pub fn fault(&self, problem: impl Into<String>) -> TemplateFault {
        // The position of a missing field is that of its parent.
        let mut path = self.path.as_str();
        let position = loop {
            match (self.merged.origin(path), path.rsplit_once('/')) {
                (Some(ValueOrigin::Template(position)), _) => break Some(position),
                (_, Some((above, _))) => path = above,
                (_, None) => break None,
            }
        };
        let path = if self.path.is_empty() { "/" } else { &self.path };
        let place = SourceLocation { file: self.file.to_string(), position };
        TemplateFault { place, path: path.to_owned(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{BasePod, PodTemplate};

    #[test]
    fn fault_has_the_position_in_the_template() {
        let base = BasePod::parse("pod", "spec: {containers: [{name: job, image: a}]}").unwrap();
        let text = "spec:\n  containers:\n  - name: $job\n    tty: true\n";
        let merged = PodTemplate::parse("/t", text).unwrap().merge_job(base).unwrap();
        let job = FieldPath::top(Arc::new(merged), "/t").at("spec/containers").item(0);
        let said = job.at("tty").fault("no").to_string();
        assert!(
            said.starts_with("/t:4:") && said.ends_with(": /spec/containers/0/tty: no"),
            "{said}"
        );
        assert!(job.at("tty").is_from_template() && !job.at("image").is_from_template());
        assert_eq!(job.at("env").fault("no").place.position, None);
    }
}
