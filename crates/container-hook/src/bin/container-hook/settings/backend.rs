//! The section `[backend]`. Builds without Kubernetes read it too, so that a file is valid for every build.

use serde::{Deserialize, Serialize};

/// `[backend]`: the backend of jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BackendSection {
    /// Kind of the backend; by default Kubernetes in a runner's pod, else this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<BackendKind>,
}

/// Kinds of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// Containers on this machine.
    Engine,
    /// Pods of a cluster.
    Kubernetes,
}
