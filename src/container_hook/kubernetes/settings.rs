//! How the admin wants jobs to be run in a cluster.

use std::path::PathBuf;
use std::time::Duration;

/// How jobs are run in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesSettings {
    /// Where pods are made; that of the runner's pod, or of the kubeconfig, if none is named.
    pub namespace: Option<String>,
    /// How long `prepare_job` waits for the containers of a job.
    pub prepare_timeout: Duration,
    /// The longest that a job's pod lives, whatever becomes of the runner.
    pub deadline: Option<Duration>,
    /// How files get to the containers of a job.
    pub work: Work,
    /// What comes back from containers after each step, if files are copied.
    pub back: Back,
    /// How many files come from a container at once at most, if they are copied: it may send what it likes.
    pub max_files: u64,
    /// How many bytes they have at most, together.
    pub max_bytes: u64,
    /// Whether pods pass the "restricted" profile of pod security.
    pub restricted: bool,
    /// Whether ports of services may be ports of the node.
    pub host_ports: bool,
    /// Whether `--label node-selector.KEY=VALUE` selects nodes.
    pub node_selectors: bool,
    /// The resource that `--gpus` asks for.
    pub gpu_resource: String,
    /// The image that brings our program to pods; that of the runner's pod if none is named.
    pub runner_image: Option<String>,
    /// Dockerfile actions; refused if nothing says where images go.
    pub build: BuildSettings,
}

/// How files get to the containers of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// By the runner's claim, if its work directory is on one; else by copies.
    #[default]
    Auto,
    Claim,
    Copy,
}

/// What comes back from containers after each step, besides the runner's own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Back {
    #[default]
    Workspace,
    Nothing,
}

/// How Dockerfile actions are built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildSettings {
    /// What the names of pushed images begin with: a registry and a path.
    pub push: Option<String>,
    /// A BuildKit that builds instead of a pod of our own: `tcp://HOST:PORT`.
    pub buildkit: Option<String>,
    /// The image with buildah, for a pod of our own.
    pub image: Option<String>,
    /// A file with logins of registries, as `docker login` writes it.
    pub auth_file: Option<PathBuf>,
    /// How buildah keeps layers: `overlay` or `vfs`; overlay if nothing is said.
    pub storage_driver: Option<String>,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        KubernetesSettings {
            namespace: None,
            prepare_timeout: Duration::from_secs(600),
            deadline: None,
            work: Work::default(),
            back: Back::default(),
            max_files: 2_000_000,
            max_bytes: 64 << 30,
            restricted: false,
            host_ports: false,
            node_selectors: false,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            runner_image: None,
            build: BuildSettings::default(),
        }
    }
}
