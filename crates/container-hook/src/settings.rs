//! The admin's settings for jobs on this host.

use std::net::IpAddr;
use std::path::PathBuf;

use container_hook_job::BuildCacheScope;
use oci_hooks_engine::bundle::HookOptions;
use oci_hooks_files::quantity::ByteSize;
use oci_hooks_image::PullPolicy;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Settings for jobs on this host.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Pull policy of images; `options:` and the template can override it.
    pub pull: PullPolicy,
    /// hooks.d hooks of containers; none to inject no hooks.
    pub hooks: Option<HookOptions>,
    /// Name servers instead of the host's.
    pub dns: Vec<IpAddr>,
    /// Maximum size of a container's log, in bytes.
    pub log_bytes: u64,
    /// Containers in which set-user-ID programs such as `sudo` work; `options:` and the template can override it.
    pub new_privileges: NewPrivileges,
    /// If set, all containers except privileged ones have Kubernetes' "restricted" profile.
    pub restricted: bool,
    /// If set, the containers of a job have a common user namespace, whose root is an unused ID on the host.
    pub user_namespace: bool,
    /// If set, files that containers create in the runner's directories belong to the runner's user.
    pub runner_owns_files: bool,
    pub limits: LimitSettings,
    pub build: BuildSettings,
    /// Additional environment variables of buildah, such as proxies.
    pub build_env: Vec<(String, String)>,
    /// Root file system of the job container.
    pub job_system: JobRootFs,
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            pull: PullPolicy::default(),
            hooks: Some(HookOptions::default()),
            dns: Vec::new(),
            log_bytes: 16 << 20,
            new_privileges: NewPrivileges::default(),
            restricted: false,
            user_namespace: true,
            runner_owns_files: true,
            limits: LimitSettings::default(),
            build: BuildSettings::default(),
            build_env: Vec::new(),
            job_system: JobRootFs::default(),
        }
    }
}

/// The root file system of a job container. Neither requests nor the settings file can choose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobRootFs {
    /// The image that the request names.
    #[default]
    Image,
    /// The programs of this host, regardless of the image in the request.
    Host,
}

/// `allow-new-privileges`: containers in which programs such as `sudo` can gain privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "PrivilegesValue", try_from = "PrivilegesValue")]
pub enum NewPrivileges {
    /// Containers in a user namespace, whose root is not root on the host.
    #[default]
    InUserNamespace,
    Allowed,
    Denied,
}

/// [`NewPrivileges`] in the file: a boolean or `"auto"`.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false or \"auto\"")]
enum PrivilegesValue {
    Is(bool),
    Name(String),
}

impl From<NewPrivileges> for PrivilegesValue {
    fn from(allowed: NewPrivileges) -> Self {
        match allowed {
            NewPrivileges::InUserNamespace => PrivilegesValue::Name("auto".to_owned()),
            NewPrivileges::Allowed => PrivilegesValue::Is(true),
            NewPrivileges::Denied => PrivilegesValue::Is(false),
        }
    }
}

impl TryFrom<PrivilegesValue> for NewPrivileges {
    type Error = &'static str;

    fn try_from(value: PrivilegesValue) -> Result<Self, Self::Error> {
        match value {
            PrivilegesValue::Is(true) => Ok(NewPrivileges::Allowed),
            PrivilegesValue::Is(false) => Ok(NewPrivileges::Denied),
            PrivilegesValue::Name(name) if name == "auto" => Ok(NewPrivileges::InUserNamespace),
            PrivilegesValue::Name(_) => Err("expected true, false or \"auto\""),
        }
    }
}

/// `[limits]`: limits of containers that set none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitSettings {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_memory")]
    pub memory: Option<ByteSize>,
    /// Processes of a container; -1 for no limit. If unset, a share of the host's processes, divided among all
    /// jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Open files of each process of a container; if unset, the limit of the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Maximum size of what a container writes to its root file system and anonymous volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// Maximum total size of the named volumes of a runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<ByteSize>,
    /// If set, a job fails if its limits are not enforced, as for a rootless user without a delegated cgroup.
    pub enforce: bool,
}

/// Minimum memory limit of a container, as in Docker.
const MIN_MEMORY_BYTES: u64 = 6 << 20;

fn some_memory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    let size = ByteSize::deserialize(from)?;
    match size.0 >= MIN_MEMORY_BYTES {
        true => Ok(Some(size)),
        false => Err(D::Error::custom(format_args!(
            "{size} is too little memory for a container: expected at least {}",
            ByteSize(MIN_MEMORY_BYTES)
        ))),
    }
}

/// `[build]`: builds of Dockerfile actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BuildSettings {
    /// Path or name of buildah.
    pub buildah: PathBuf,
    /// Options of every call of buildah, such as `--storage-driver=vfs`.
    pub options: Vec<String>,
    pub cache: BuildCacheScope,
}

impl Default for BuildSettings {
    fn default() -> Self {
        BuildSettings {
            buildah: "buildah".into(),
            options: Vec::new(),
            cache: BuildCacheScope::default(),
        }
    }
}
