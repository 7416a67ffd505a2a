//! The sections `[backend]` and `[kubernetes]`. Builds without Kubernetes read them too, so that a file is
//! valid for every build.

use std::path::PathBuf;
use std::time::Duration;

use oci_hooks_files::quantity::{Age, ByteSize, Cpus};
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

/// `[kubernetes]`: jobs in a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_timeout: Option<Age>,
    pub lost_timeout: Age,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Age>,
    pub work: WorkSetting,
    pub back: BackSetting,
    pub max_files: u64,
    pub max_bytes: ByteSize,
    pub restricted: bool,
    pub host_ports: bool,
    pub node_selectors: bool,
    pub gpu_resource: String,
    pub cpu_request: Cpus,
    pub memory_request: ByteSize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_image: Option<String>,
    #[serde(skip_serializing_if = "KubernetesBuild::is_empty")]
    pub build: KubernetesBuild,
}

/// Transport of files to the containers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkSetting {
    #[default]
    Auto,
    Claim,
    Copy,
}

/// The part of the workspace that is copied back after each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackSetting {
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

/// Storage driver of buildah.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageDriver {
    /// The kernel's overlayfs.
    Overlay,
    /// A copy of each layer.
    Vfs,
}

impl StorageDriver {
    /// Returns buildah's name of the driver.
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

impl Default for KubernetesSection {
    fn default() -> Self {
        KubernetesSection {
            namespace: None,
            prepare_timeout: None,
            lost_timeout: Age(Duration::from_secs(300)),
            deadline: None,
            work: WorkSetting::default(),
            back: BackSetting::default(),
            max_files: 2_000_000,
            max_bytes: ByteSize(64 << 30),
            restricted: false,
            host_ports: false,
            node_selectors: false,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            cpu_request: Cpus::new(0.05).expect("it is in range"),
            memory_request: ByteSize(64 << 20),
            runner_image: None,
            build: KubernetesBuild::default(),
        }
    }
}
