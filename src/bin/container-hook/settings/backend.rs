//! The sections `[backend]` and `[kubernetes]`. Builds without Kubernetes read them too, so that a file is valid
//! for every build.

use std::path::PathBuf;

use oci_hooks::sys::quantity::{Age, Size};
use serde::{Deserialize, Serialize};

/// `[backend]`: what carries jobs out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Backend {
    /// If not said, Kubernetes in a pod of a runner, else this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
}

/// A kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// On this machine.
    Engine,
    /// In pods of a cluster.
    Kubernetes,
}

/// `[kubernetes]`: jobs in a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Kubernetes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_timeout: Option<Age>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Age>,
    pub work: Work,
    pub back: Back,
    pub max_files: u64,
    pub max_bytes: Size,
    pub restricted: bool,
    pub host_ports: bool,
    pub node_selectors: bool,
    pub gpu_resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_image: Option<String>,
    #[serde(skip_serializing_if = "KubernetesBuild::is_empty")]
    pub build: KubernetesBuild,
}

/// A way for files to get to the containers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    #[default]
    Auto,
    Claim,
    Copy,
}

/// The part of the workspace that is copied back after each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Back {
    #[default]
    Workspace,
    Nothing,
}

/// `[kubernetes.build]`: Dockerfile actions in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesBuild {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buildkit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_driver: Option<StorageDriver>,
}

/// Buildah's storage driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageDriver {
    /// The kernel's overlayfs.
    Overlay,
    /// A copy of each layer.
    Vfs,
}

impl StorageDriver {
    /// Returns what buildah calls it.
    pub fn name(self) -> &'static str {
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
