//! Settings of the Kubernetes backend.

use std::path::PathBuf;
use std::time::Duration;

use container_hook_job::BuildCacheScope;

/// Default of [`KubernetesSettings::lost_timeout`], which is also the agent's default for the time without a hook.
pub const LOST_TIMEOUT: Duration = Duration::from_secs(300);

/// Settings of jobs in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesSettings {
    /// Namespace of the pods; by default that of the runner's pod or of the kubeconfig.
    pub namespace: Option<String>,
    /// Timeout for the containers of a pod to be ready.
    pub prepare_timeout: Duration,
    /// Time without contact to a container after which its step ends.
    pub lost_timeout: Duration,
    /// Maximum lifetime of a job's pod, even if the runner disappears.
    pub deadline: Option<Duration>,
    /// Transport of files to the containers of a job.
    pub work: WorkTransport,
    /// Files downloaded from containers after each step, if files are copied.
    pub back: DownloadScope,
    /// Maximum number of files in one download: containers are untrusted.
    pub max_files: u64,
    /// Maximum total size of one download, in bytes.
    pub max_bytes: u64,
    /// If set, pods comply with the "restricted" pod security standard.
    pub restricted: bool,
    /// If set, containers may have ports of the node.
    pub host_ports: bool,
    /// If set, `--label node-selector.KEY=VALUE` selects nodes.
    pub node_selectors: bool,
    /// Resource that `--gpus` requests.
    pub gpu_resource: String,
    /// Requests of containers that have limits.
    pub requests: ResourceRequests,
    /// Image from which pods get this program; by default that of the runner's pod.
    pub runner_image: Option<String>,
    /// Dockerfile actions; rejected unless a registry for images is set.
    pub build: BuildSettings,
}

/// Requests of containers that have limits, and so a part of the node that no other pod can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceRequests {
    /// Billionths of a CPU.
    pub nano_cpus: u64,
    pub memory_bytes: u64,
}

impl Default for ResourceRequests {
    fn default() -> Self {
        ResourceRequests { nano_cpus: 50_000_000, memory_bytes: 64 << 20 }
    }
}

/// Transport of files to the containers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkTransport {
    /// The runner's claim if it holds the work directory, else copies.
    #[default]
    Auto,
    Claim,
    Copy,
}

/// Files downloaded from containers after each step, besides the runner's own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DownloadScope {
    #[default]
    Workspace,
    Nothing,
}

/// Settings of building Dockerfile actions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildSettings {
    /// Prefix of the names of pushed images: a registry and a path.
    pub push: Option<String>,
    /// Address of a BuildKit daemon that builds instead of a pod: `tcp://HOST:PORT`.
    pub buildkit: Option<String>,
    /// Image with buildah, for the build pod.
    pub image: Option<String>,
    /// File with registry logins, as `docker login` writes it.
    pub auth_file: Option<PathBuf>,
    /// Storage driver of buildah: `overlay` (default) or `vfs`.
    pub storage_driver: Option<String>,
    pub cache: BuildCacheScope,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        KubernetesSettings {
            namespace: None,
            prepare_timeout: Duration::from_secs(600),
            lost_timeout: LOST_TIMEOUT,
            deadline: None,
            work: WorkTransport::default(),
            back: DownloadScope::default(),
            max_files: 2_000_000,
            max_bytes: 64 << 30,
            restricted: false,
            host_ports: false,
            node_selectors: false,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            requests: ResourceRequests::default(),
            runner_image: None,
            build: BuildSettings::default(),
        }
    }
}
