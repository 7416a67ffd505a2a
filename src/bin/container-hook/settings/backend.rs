//! What carries jobs out, `[backend]` and `[kubernetes]`. They are read by every build of the program, so that
//! a file means the same to all.

use std::path::PathBuf;

use oci_hooks::sys::quantity::{Age, Size};
use serde::{Deserialize, Serialize};

/// What carries jobs out, `[backend]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Backend {
    /// If not said, Kubernetes in a pod of a runner, else this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Kind>,
}

/// Where the containers of jobs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// On this machine.
    Engine,
    /// In pods of a cluster.
    Kubernetes,
}

/// How jobs are run in a cluster, `[kubernetes]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Kubernetes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prepare_timeout: Option<Age>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<Age>,
    pub(crate) work: Work,
    pub(crate) back: Back,
    pub(crate) max_files: u64,
    pub(crate) max_bytes: Size,
    pub(crate) restricted: bool,
    pub(crate) host_ports: bool,
    pub(crate) node_selectors: bool,
    pub(crate) gpu_resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runner_image: Option<String>,
    #[serde(skip_serializing_if = "KubernetesBuild::is_empty")]
    pub(crate) build: KubernetesBuild,
}

/// How files get to the containers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    #[default]
    Auto,
    Claim,
    Copy,
}

/// What of the workspace comes back after each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Back {
    #[default]
    Workspace,
    Nothing,
}

/// How Dockerfile actions are built in a cluster, `[kubernetes.build]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct KubernetesBuild {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) push: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) buildkit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auth_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) storage_driver: Option<StorageDriver>,
}

/// How buildah keeps the layers of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StorageDriver {
    /// By the kernel, one over the other.
    Overlay,
    /// As copies.
    Vfs,
}

impl StorageDriver {
    /// Returns what buildah calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StorageDriver::Overlay => "overlay",
            StorageDriver::Vfs => "vfs",
        }
    }
}

impl KubernetesBuild {
    fn is_empty(&self) -> bool {
        *self == KubernetesBuild::default()
    }
}

impl Default for Kubernetes {
    fn default() -> Self {
        Kubernetes {
            namespace: None,
            prepare_timeout: None,
            deadline: None,
            work: Work::default(),
            back: Back::default(),
            max_files: 2_000_000,
            max_bytes: Size(64 << 30),
            restricted: false,
            host_ports: false,
            node_selectors: false,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            runner_image: None,
            build: KubernetesBuild::default(),
        }
    }
}
