//! How the admin wants jobs to be run on this host.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::bundle::HookOptions;
use crate::image::PullPolicy;

/// How jobs are run on this host.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Whether a registry is asked about an image that is there already.
    pub pull: PullPolicy,
    /// Which hooks.d hooks containers get; none at all if absent.
    pub hooks: Option<HookOptions>,
    /// Resolvers instead of the host's.
    pub dns: Vec<IpAddr>,
    /// How much of a service's output is kept, in bytes.
    pub log_bytes: u64,
    /// Whether set-user-ID programs such as `sudo` work in containers that say nothing of it.
    pub new_privileges: NewPrivileges,
    /// Kubernetes' "restricted" profile for all containers.
    pub restricted: bool,
    /// Whether containers have a user namespace of their own: root in one is nobody on the host.
    pub user_namespace: bool,
    /// Whether files that containers make in the runner's directories belong to its user.
    pub runner_owns_files: bool,
    /// The limit of memory of a container that asks for none, in bytes.
    pub memory_bytes: Option<u64>,
    /// The limit of processes of a container that asks for none; -1 for any. If not said, what the
    /// host can spare, shared by all its jobs.
    pub pids_limit: Option<i64>,
    /// How many files each process of a container may have open; as many as the runner if not said.
    pub open_files: Option<u64>,
    /// The limit of what a container writes to its root file system and the volumes that are its
    /// alone, in bytes.
    pub disk_bytes: Option<u64>,
    /// The limit of what all named volumes of a runner take together, in bytes.
    pub volumes_bytes: Option<u64>,
    /// Whether a job fails whose limits do not hold, as those of an ordinary user without a cgroup of its own.
    pub enforce_limits: bool,
    /// How Dockerfile actions are built.
    pub build: BuildOptions,
    /// What the job container's root file system is made of.
    pub job_system: JobSystem,
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            pull: PullPolicy::default(),
            hooks: Some(HookOptions::default()),
            dns: Vec::new(),
            log_bytes: 16 << 20,
            new_privileges: NewPrivileges::OfOwnUsers,
            restricted: false,
            user_namespace: true,
            runner_owns_files: true,
            memory_bytes: None,
            pids_limit: None,
            open_files: None,
            disk_bytes: None,
            volumes_bytes: None,
            enforce_limits: false,
            build: BuildOptions::default(),
            job_system: JobSystem::default(),
        }
    }
}

/// What the root file system of a job container is made of. No request says so, and no setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobSystem {
    /// The image that the request names.
    #[default]
    Image,
    /// The programs of this host, whatever image the request names.
    Host,
}

/// In which containers programs may get more rights than whoever starts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewPrivileges {
    /// In those with a user namespace of their own, where even root is nobody on the host.
    OfOwnUsers,
    Allowed,
    Denied,
}

/// How the images of Dockerfile actions are built.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// buildah, as a path or a name.
    pub program: PathBuf,
    /// Options for every call, as `--storage-driver=vfs`.
    pub options: Vec<String>,
    /// Variables it gets besides `PATH` and `HOME`, as proxies.
    pub env: Vec<(String, String)>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions { program: PathBuf::from("buildah"), options: Vec::new(), env: Vec::new() }
    }
}
