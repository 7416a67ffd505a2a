//! The admin's `[policy]`: limits on the options and volumes of workflows.
//!
//! The default policy allows only options that cannot reach the host or another job. Other options are denied
//! with the key that would allow them. Paths are compared after symbolic links and `..` are resolved, so that
//! denials are reported before a container is created. Mounts are then opened beneath the allowed directory,
//! so a path changed in between cannot leave it.

mod check;
mod maximums;
mod paths;
mod preset;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use oci_hooks_engine::bundle::DeviceRule;
use serde::{Deserialize, Serialize};

use super::options::HostNamespace;

pub use maximums::{
    ContainerMax, ExceededMaximum, JobMax, MaxTable, UlimitName, WhenExceeded, exceeded_maximum,
};
pub use paths::is_engine_socket;
pub use preset::Preset;

/// Limits on the options and volumes of workflows. Unset keys have the value of the preset.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(from = "preset::WrittenPolicy", rename_all = "kebab-case")]
pub struct Policy {
    pub preset: Preset,
    /// If set, `--privileged` is allowed, which amounts to root on the host. Default: false.
    pub privileged: bool,
    /// Host namespaces that containers may share: `cgroup`, `ipc`, `network`, `pid`, `uts`. Default: none.
    pub host_namespaces: Vec<HostNamespace>,
    /// Files and directories of the host that may be mounted, including all files below them. Default: none;
    /// the runner's own directories are always mounted and need no entry.
    pub bind_mounts: Vec<PathBuf>,
    /// If set, mounts made in a container may appear on the host (`shared`). Default: false.
    pub shared_mounts: bool,
    /// Devices that containers may have: paths, where a directory allows all devices below it, and names of
    /// CDI devices, where a trailing `*` matches any suffix. Default: none.
    pub devices: Vec<PathBuf>,
    /// Rules that `--device-cgroup-rule` may add, in its notation. A rule also allows narrower
    /// rules: `c 189:* rwm` allows `c 189:3 r`. Default: none.
    pub device_rules: Vec<DeviceRule>,
    /// Capabilities that `--cap-add` may add; `ALL` allows every capability. Default: Docker's default
    /// capabilities without `MKNOD`, plus `IPC_LOCK` and `SYS_PTRACE`.
    pub capabilities: Vec<String>,
    /// Allowed values of `--security-opt`: `seccomp=unconfined`, `apparmor=PROFILE`,
    /// `no-new-privileges=false`, `systempaths=unconfined`; a trailing `*` matches any suffix. Default: none.
    pub security_opts: Vec<String>,
    /// If set, programs in containers may create user namespaces and mount in them, as buildah and podman do
    /// in a step. Applies only to containers whose root is not root on the host. Default: false.
    pub nesting: bool,
    /// Keys of annotations that containers may carry; a trailing `*` matches any suffix. Hooks and runtimes
    /// act on annotations, as root. Default: none.
    pub annotations: Vec<String>,
    /// If set, a container may be protected from the OOM killer: a negative `--oom-score-adj`,
    /// `--oom-kill-disable`. Default: false.
    pub oom_protection: bool,
    /// Maximum `--pids-limit`; higher limits are denied, and 0 is no maximum. Ignored if `max` sets
    /// `pids` for each container or for the job. Default: 32768.
    pub max_pids: u64,
    /// Devices and files that `--gpus all` adds. Without this table, `--gpus` selects CDI devices,
    /// which `devices` must allow. In a cluster, the table only allows `--gpus`; it may be empty,
    /// because a device plugin provides the devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuPolicy>,
    /// Maximums for all containers, from workflows and from the template.
    #[serde(skip_serializing_if = "ContainerMax::is_empty")]
    pub max: ContainerMax,
    /// Runtimes of the jobs of some repositories, by `OWNER/REPOSITORY` in lower case, where a trailing `*` matches any
    /// suffix: paths of programs, and in a cluster names of runtime classes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runtimes: BTreeMap<String, String>,
    /// Settings file with this policy, for messages.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

/// The devices and files that `--gpus all` adds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GpuPolicy {
    /// Devices in the notation of `--device`, or paths with a trailing `*` that matches any suffix. CDI
    /// devices need not be in [`Policy::devices`].
    pub devices: Vec<String>,
    /// Files of the driver, in the notation of `--volume`.
    pub volumes: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::of(Preset::Default)
    }
}

impl Policy {
    /// Returns the runtime of a repository's jobs, by the longest pattern that matches; none if it is the default
    /// runtime.
    pub fn runtime(&self, repository: &str) -> Option<&str> {
        // GitHub's names are case-insensitive; those of the settings are in lower case.
        let repository = repository.to_lowercase();
        let matching = self.runtimes.iter();
        let matching = matching.filter(|(name, _)| check::matches_pattern(name, &repository));
        let specificity = |name: &str| (name.len(), !name.ends_with('*'));
        matching.max_by_key(|(name, _)| specificity(name)).map(|(_, runtime)| runtime.as_str())
    }
}

/// An option or volume that the policy denies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is not allowed: {advice}")]
pub struct PolicyDenial {
    /// Option with its value, or volume.
    pub option: String,
    /// Setting by which the admin can allow it, or the reason why no setting can.
    pub advice: String,
}

/// All options of a container that the policy denies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(PolicyDenial::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PolicyError(pub Vec<PolicyDenial>);
