//! `[kubernetes]` of a settings file: jobs in a cluster. Builds without the Kubernetes backend read
//! it too, so that a file is valid for every build.

use std::path::PathBuf;
use std::time::Duration;

use oci_hooks_files::quantity::{Age, ByteSize, Cpus};
use serde::{Deserialize, Serialize};

/// Default of [`KubernetesSettings::lost_timeout`]. The agent in the containers has the same
/// default.
pub const LOST_TIMEOUT: Age = Age(Duration::from_secs(300));

/// Settings of jobs in a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesSettings {
    /// Namespace of the pods; by default that of the runner's pod or of the kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Timeout for the containers of a pod to be ready; by default 10 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_timeout: Option<Age>,
    /// Time without contact with a container after which its step ends.
    pub lost_timeout: Age,
    /// Maximum lifetime of a job's pod, even if the runner disappears.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Age>,
    /// Transport of files to the containers of a job.
    pub work: WorkTransport,
    /// If the work directory is copied (see `work`): files downloaded from containers after each
    /// step, besides the runner's own files.
    pub back: DownloadScope,
    /// Maximum number of files in one download: containers are untrusted.
    pub max_files: u64,
    /// Maximum total size of one download.
    pub max_bytes: ByteSize,
    /// If set, pods comply with the "restricted" pod security standard.
    pub restricted: bool,
    /// If set, containers may publish ports on the node (`hostPort`).
    pub host_ports: bool,
    /// If set, `--label node-selector.KEY=VALUE` selects nodes.
    pub node_selectors: bool,
    /// Resource that `--gpus` requests.
    pub gpu_resource: String,
    /// CPU request of containers that have a CPU limit. Kubernetes reserves requested CPUs on the node.
    pub cpu_request: Cpus,
    /// Memory request of containers that have a memory limit.
    pub memory_request: ByteSize,
    /// Image from which pods get this program; by default that of the runner's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_image: Option<String>,
    /// `true`: pods mount the runner image as a volume; `false`: an init container copies from it. By default it is
    /// mounted if image, container runtime and version of the cluster allow it. If a pod cannot be started so, one
    /// with an init container follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_volumes: Option<bool>,
    /// Dockerfile actions; rejected unless a registry for images is set.
    #[serde(skip_serializing_if = "KubernetesBuild::is_empty")]
    pub build: KubernetesBuild,
}

/// Transport of files to the containers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkTransport {
    /// `Claim` if the work directory is on a volume that several pods can mount, else `Copy`.
    #[default]
    Auto,
    /// Mount the persistent volume claim that has the runner's work directory.
    Claim,
    /// Upload and download files.
    Copy,
}

/// Files downloaded from containers after each step, besides the runner's own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownloadScope {
    #[default]
    Workspace,
    Nothing,
}

/// `[kubernetes.build]`: Dockerfile actions in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesBuild {
    /// Prefix of the names of pushed images: a registry and a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<String>,
    /// Address of a BuildKit daemon that builds instead of a pod: `tcp://HOST:PORT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buildkit: Option<String>,
    /// Image with buildah, for the build pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// File with registry logins, as `docker login` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_file: Option<PathBuf>,
    /// Storage driver of buildah in the build pod; by default the kernel's overlayfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_driver: Option<StorageDriver>,
}

/// Storage driver of buildah.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageDriver {
    /// The kernel's overlayfs.
    #[default]
    Overlay,
    /// `vfs`: each layer is a full copy of the file system.
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

impl KubernetesSettings {
    /// Returns the timeout for the containers of a pod to be ready.
    pub fn prepare_timeout(&self) -> Duration {
        self.prepare_timeout.map_or(Duration::from_secs(600), |age| age.0)
    }
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        KubernetesSettings {
            namespace: None,
            prepare_timeout: None,
            lost_timeout: LOST_TIMEOUT,
            deadline: None,
            work: WorkTransport::default(),
            back: DownloadScope::default(),
            max_files: 2_000_000,
            max_bytes: ByteSize(64 << 30),
            restricted: false,
            host_ports: false,
            node_selectors: false,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            cpu_request: Cpus::new(0.05).expect("it is in range"),
            memory_request: ByteSize(64 << 20),
            runner_image: None,
            image_volumes: None,
            build: KubernetesBuild::default(),
        }
    }
}
