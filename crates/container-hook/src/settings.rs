//! The admin's settings for jobs on this host.

use std::net::IpAddr;
use std::path::PathBuf;

use oci_hooks_engine::bundle::HookOptions;
use oci_hooks_image::PullPolicy;

use container_hook_job::BuildCache;

/// Settings for jobs on this host.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Pull policy of images that are already in the store.
    pub pull: PullPolicy,
    /// hooks.d hooks of containers; none to inject no hooks.
    pub hooks: Option<HookOptions>,
    /// Name servers instead of the host's.
    pub dns: Vec<IpAddr>,
    /// Maximum size of a service's log, in bytes.
    pub log_bytes: u64,
    /// Containers in which set-user-ID programs such as `sudo` work, unless `options:` sets it.
    pub new_privileges: NewPrivileges,
    /// If set, all containers have Kubernetes' "restricted" profile.
    pub restricted: bool,
    /// If set, containers have their own user namespace, with root mapped to an unused host ID.
    pub user_namespace: bool,
    /// If set, files that containers create in the runner's directories belong to the runner's user.
    pub runner_owns_files: bool,
    /// Default memory limit of a container, in bytes.
    pub memory_bytes: Option<u64>,
    /// Default limit of processes of a container; -1 for no limit. If unset, a share of the host's processes,
    /// divided among all jobs.
    pub pids_limit: Option<i64>,
    /// Maximum open files of each process of a container; if unset, the limit of the runner.
    pub open_files: Option<u64>,
    /// Limit of a container's writes to its root file system and anonymous volumes, in bytes.
    pub disk_bytes: Option<u64>,
    /// Limit of all named volumes of a runner together, in bytes.
    pub volumes_bytes: Option<u64>,
    /// If set, a job fails if its limits are not enforced, as for a rootless user without a delegated cgroup.
    pub enforce_limits: bool,
    /// Builds of Dockerfile actions.
    pub build: BuildOptions,
    /// Root file system of the job container.
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

/// The root file system of a job container. Neither requests nor settings can choose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobSystem {
    /// The image that the request names.
    #[default]
    Image,
    /// The programs of this host, regardless of the image in the request.
    Host,
}

/// Containers in which programs may gain privileges on exec, as set-user-ID programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewPrivileges {
    /// Containers in a user namespace, whose root is not root on the host.
    OfOwnUsers,
    Allowed,
    Denied,
}

/// Options for building the images of Dockerfile actions.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Path or name of buildah.
    pub program: PathBuf,
    /// Options of every call, such as `--storage-driver=vfs`.
    pub options: Vec<String>,
    /// Environment variables in addition to `PATH` and `HOME`, such as proxies.
    pub env: Vec<(String, String)>,
    pub cache: BuildCache,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            program: PathBuf::from("buildah"),
            options: Vec::new(),
            env: Vec::new(),
            cache: BuildCache::default(),
        }
    }
}
