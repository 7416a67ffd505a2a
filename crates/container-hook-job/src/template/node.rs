//! A pod as a tree of values with their origins.

use oci_hooks_yaml::TextPosition;

/// A value of a pod or a template, with its origin.
pub type PodNode = oci_hooks_yaml::YamlNode<ValueOrigin>;

/// A scalar, list or map with the origins of its parts.
pub type PodValue = oci_hooks_yaml::YamlValue<ValueOrigin>;

/// A key and its value.
pub type PodEntry = oci_hooks_yaml::YamlField<ValueOrigin>;

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Set by the hook, independent of the request.
    Default,
    Request,
    /// Set by a base pod that the caller provides.
    Given,
    Template(TextPosition),
}

impl ValueOrigin {
    /// Returns the position in the template.
    pub fn position(self) -> Option<TextPosition> {
        match self {
            ValueOrigin::Template(position) => Some(position),
            _ => None,
        }
    }
}
