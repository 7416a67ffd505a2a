//! What workflows may ask for: the admin's `[policy]`.
//!
//! By default only what cannot reach the host or another job. An option that goes further is denied
//! with the key that would allow it. Paths are compared after symbolic links and `..` are resolved, to
//! say what is denied before anything is done. What is mounted then is opened beneath the allowed
//! directory, and only what can be opened there is allowed.

pub(in crate::container_hook) mod ceilings;
mod check;
mod paths;
mod preset;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::options::Namespace;

pub(in crate::container_hook) use ceilings::{Exceeded, above, cpus, memory};
pub use ceilings::{Max, MaxOfJob, UlimitName, WhenExceeded};
pub use paths::is_engine_socket;
pub use preset::Preset;

/// What workflows may ask for. Every key is optional; those that are not written are the preset's.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(from = "preset::WrittenPolicy", rename_all = "kebab-case")]
pub struct Policy {
    /// What holds for keys that are not written.
    pub preset: Preset,
    /// Whether `--privileged` is allowed: root of the host, in effect. Default: false.
    pub privileged: bool,
    /// The namespaces of the host that containers may be in: `cgroup`, `ipc`, `network`, `pid`,
    /// `uts`. Default: none.
    pub host_namespaces: Vec<Namespace>,
    /// The files and directories of the host that may be mounted, with all below. Default: none;
    /// the runner's own directories are mounted by itself and need no entry.
    pub bind_mounts: Vec<PathBuf>,
    /// Whether mounts made in a container may appear on the host (`shared`). Default: false.
    pub shared_mounts: bool,
    /// The devices that containers may have, with all below if it is a directory. Default: none.
    pub devices: Vec<PathBuf>,
    /// The rules that `--device-cgroup-rule` may add, as written there, and what they cover: `c 189:* rwm`
    /// covers `c 189:3 r`. Default: none.
    pub device_rules: Vec<String>,
    /// The capabilities that `--cap-add` may add; `ALL` is each. Default: those that Docker gives
    /// every container, `IPC_LOCK` and `SYS_PTRACE`.
    pub capabilities: Vec<String>,
    /// What `--security-opt` may loosen: `seccomp=unconfined`, `apparmor=PROFILE`,
    /// `no-new-privileges=false`, `systempaths=unconfined`; a `*` at the end stands for any rest.
    /// Default: nothing.
    pub security_opts: Vec<String>,
    /// Whether programs in containers may make user namespaces and mount in them, as buildah and podman do in
    /// a step. Only for containers whose root is nobody on the host. Default: false.
    pub nesting: bool,
    /// The annotations that containers may carry, by key; a `*` at the end stands for any rest. Hooks
    /// and runtimes act on annotations, as root. Default: none.
    pub annotations: Vec<String>,
    /// Whether a container may be kept from the kernel's search for memory to free: a negative
    /// `--oom-score-adj`, `--oom-kill-disable`. Default: false.
    pub oom_protection: bool,
    /// The highest `--pids-limit`; 0 is none. Default: 32768.
    pub max_pids: u64,
    /// What `--gpus all` stands for. Default: nothing, it is denied. In a cluster the table, which may be
    /// empty, allows `--gpus`, and a device plugin gives the devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    /// What no container exceeds, whoever asks for it.
    #[serde(skip_serializing_if = "Max::is_empty")]
    pub max: Max,
    /// The file that says so, for messages.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

/// What `--gpus all` stands for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Gpus {
    /// Devices, each as `--device` takes it, or a path with `*` at the end for all that begin so.
    pub devices: Vec<String>,
    /// Files of the driver, each as `--volume` takes it.
    pub volumes: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::of(Preset::Default)
    }
}

/// Something that the policy does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is not allowed on this machine: {advice}")]
pub struct Denied {
    /// The option with its value, or the volume.
    pub option: String,
    /// What the admin can do about it, or why nobody can.
    pub advice: String,
}

/// Everything in a container's options that the policy does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Denied::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PolicyError(pub Vec<Denied>);
