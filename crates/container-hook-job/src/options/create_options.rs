//! The parsed `options:` of a container.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use oci_hooks_engine::bundle::{DeviceAccess, DeviceRule};

use crate::volumes::{RequestVolume, Tmpfs};

/// The `options:` of a container.
///
/// A field that is `None`, empty or false keeps the default of the image or the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CreateOptions {
    /// `--name`: an additional host name.
    pub name: Option<String>,
    /// `--hostname`; if none, the first 12 characters of the container id, or the pod's name in a cluster.
    pub hostname: Option<String>,
    pub domainname: Option<String>,
    /// `--platform`: `OS[/ARCHITECTURE[/VARIANT]]`.
    pub platform: Option<String>,
    /// `--pull`; if none, the policy of the settings.
    pub pull: Option<PullOption>,
    /// `--entrypoint`; empty clears the image's.
    pub entrypoint: Option<String>,
    /// `--user`: `USER[:GROUP]`, names or numbers.
    pub user: Option<String>,
    /// `--group-add`: supplementary groups, names or numbers.
    pub groups: Vec<String>,
    /// `--workdir`: an absolute path.
    pub workdir: Option<String>,
    /// `--env`, each variable once: the last value, at the position of the first.
    pub env: Vec<EnvOption>,
    /// `--label`, by key; the last one counts.
    pub labels: BTreeMap<String, String>,
    /// `--annotation`, by key; the last one counts.
    pub annotations: BTreeMap<String, String>,
    /// `--init`: run an init process that reaps orphans.
    pub init: Option<bool>,
    /// `--read-only`: the root file system.
    pub read_only: bool,
    /// `--stop-signal`: a name or number.
    pub stop_signal: Option<String>,
    /// `--stop-timeout`: the time between the stop signal and the kill.
    pub stop_timeout: Option<Duration>,
    pub network: NetworkOptions,
    /// `--volume` and `--mount`, except `tmpfs`.
    pub volumes: Vec<RequestVolume>,
    /// `--tmpfs` and `--mount type=tmpfs`.
    pub tmpfs: Vec<Tmpfs>,
    /// `--shm-size` in bytes.
    pub shm_size_bytes: Option<u64>,
    /// `--health-*` and `--no-healthcheck`.
    pub health: HealthOptions,
    /// Namespaces to share with the host: `--pid=host`, `--ipc=host` and so on. The network namespace is in
    /// [`NetworkOptions::mode`].
    pub host_namespaces: BTreeSet<HostNamespace>,
    /// `--ipc`: the IPC namespace, unless it is the host's.
    pub ipc: IpcMode,
    pub security: SecurityOptions,
    pub devices: Vec<DeviceOption>,
    /// `--device-cgroup-rule`: access to devices, without device nodes.
    pub device_rules: Vec<DeviceRule>,
    /// Qualified names of CDI devices, from `--device`; the policy adds those of `--gpus`.
    pub cdi_devices: Vec<String>,
    pub gpus: Option<GpuOption>,
    /// GPU devices, filled in from the policy.
    pub gpu_devices: Vec<DeviceOption>,
    /// Files of the GPU driver, filled in from the policy.
    pub gpu_volumes: Vec<RequestVolume>,
    pub resources: ResourceOptions,
    /// `--ulimit`, each resource once.
    pub ulimits: Vec<Ulimit>,
    pub sysctls: BTreeMap<String, String>,
    /// Options that were accepted without effect, to be reported in the log.
    pub without_effect: Vec<IneffectiveOption>,
}

/// The pull policy of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullOption {
    Always,
    Missing,
    Never,
}

/// An environment variable of `--env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvOption {
    pub name: String,
    /// Value; none removes the image's variable. (The reference hook takes the value from the environment of
    /// the runner's worker, which jobs must not see.)
    pub value: Option<String>,
}

/// Changes to the image's health check. Fields that are none keep the image's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthOptions {
    /// `--no-healthcheck`.
    pub disabled: bool,
    /// `--health-cmd`: a command line for the container's shell.
    pub command: Option<String>,
    pub interval: Option<Duration>,
    pub timeout: Option<Duration>,
    pub start_period: Option<Duration>,
    pub start_interval: Option<Duration>,
    pub retries: Option<u32>,
}

/// An option that was accepted without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IneffectiveOption {
    /// Name of the option, without dashes.
    pub option: &'static str,
    pub reason: &'static str,
}

/// A device of the host, or a directory of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOption {
    /// Absolute path on the host.
    pub host: PathBuf,
    /// Absolute path in the container.
    pub container: String,
    pub access: DeviceAccess,
}

/// The GPUs of `--gpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuOption {
    All,
    Count(u32),
    /// Indexes, or names such as `GPU-4f28`.
    Devices(Vec<String>),
}

/// The network, host names and ports of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkOptions {
    /// `--network`.
    pub mode: NetworkMode,
    /// `--network-alias`: additional host names.
    pub aliases: Vec<String>,
    /// `--add-host`: host names and their addresses.
    pub hosts: Vec<AddedHost>,
    /// `--dns`: name servers instead of the host's.
    pub dns: Vec<IpAddr>,
    pub dns_options: Vec<String>,
    /// `--dns-search`; a single `.` means no search domain.
    pub dns_search: Vec<String>,
    /// `--publish`, as written.
    pub publish: Vec<String>,
    /// `--expose`: ports in addition to the image's.
    pub expose: Vec<ExposedPort>,
}

/// The network of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// Network of the job's containers.
    #[default]
    Job,
    Host,
    /// A network namespace with only the loopback interface.
    None,
}

/// An entry of `/etc/hosts`, from `--add-host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedHost {
    pub name: String,
    pub address: HostAddress,
}

/// The address of a name from `--add-host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAddress {
    Address(IpAddr),
    /// Address of the host as seen from the container: `host-gateway`.
    Gateway,
}

/// An exposed port of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExposedPort {
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
}

/// Limits on CPUs, memory and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceOptions {
    /// `--cpus` in billionths of a CPU.
    pub nano_cpus: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// `--cpu-period` in microseconds.
    pub cpu_period: Option<u64>,
    /// `--cpu-quota` in microseconds per period; -1 is no limit.
    pub cpu_quota: Option<i64>,
    /// `--cpuset-cpus`, such as `0-2,4`.
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    /// `--memory` in bytes.
    pub memory_bytes: Option<u64>,
    /// `--memory-reservation` in bytes.
    pub memory_reservation_bytes: Option<u64>,
    /// `--memory-swap`: memory and swap together.
    pub memory_swap: Option<SwapLimit>,
    /// `--memory-swappiness`, 0 to 100.
    pub memory_swappiness: Option<u64>,
    /// `--pids-limit`; 0 is no limit.
    pub pids: Option<u64>,
    pub oom_kill_disable: bool,
    /// `--oom-score-adj`, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// `--blkio-weight`, 10 to 1000.
    pub blkio_weight: Option<u16>,
}

/// The limit of memory and swap together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapLimit {
    Unlimited,
    Bytes(u64),
}

/// A limit of `setrlimit(2)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ulimit {
    /// Resource, such as `nofile`.
    pub name: &'static str,
    /// Soft limit; `u64::MAX` is no limit.
    pub soft: u64,
    /// Hard limit; `u64::MAX` is no limit.
    pub hard: u64,
}

impl fmt::Display for Ulimit {
    /// Writes the argument of `--ulimit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |value: u64| match value {
            u64::MAX => "-1".to_owned(),
            value => value.to_string(),
        };
        write!(f, "{}={}", self.name, limit(self.soft))?;
        if self.soft == self.hard { Ok(()) } else { write!(f, ":{}", limit(self.hard)) }
    }
}

/// Capabilities, seccomp, AppArmor and similar confinement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityOptions {
    pub privileged: bool,
    /// `--cap-add`: `ALL` or names with `CAP_`.
    pub cap_add: Vec<String>,
    /// `--cap-drop`: `ALL` or names with `CAP_`.
    pub cap_drop: Vec<String>,
    /// `--security-opt seccomp=unconfined`: no seccomp filter.
    pub seccomp_unconfined: bool,
    /// `--security-opt apparmor=`: the name of the profile.
    pub apparmor: Option<String>,
    /// `--security-opt no-new-privileges`.
    pub no_new_privileges: Option<bool>,
    /// `--security-opt systempaths=unconfined`: nothing in `/proc` and `/sys` is masked or read-only.
    pub system_paths_unconfined: bool,
}

/// A namespace that a container may share with the host.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum HostNamespace {
    Cgroup,
    Ipc,
    Network,
    Pid,
    Uts,
}

impl HostNamespace {
    /// All namespaces.
    pub const ALL: [HostNamespace; 5] = [
        HostNamespace::Cgroup,
        HostNamespace::Ipc,
        HostNamespace::Network,
        HostNamespace::Pid,
        HostNamespace::Uts,
    ];

    /// Returns the name in the policy.
    pub fn name(self) -> &'static str {
        match self {
            HostNamespace::Cgroup => "cgroup",
            HostNamespace::Ipc => "ipc",
            HostNamespace::Network => "network",
            HostNamespace::Pid => "pid",
            HostNamespace::Uts => "uts",
        }
    }
}

/// The IPC namespace of a container that does not share the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpcMode {
    /// A namespace of the container, with a `/dev/shm` of the usual size.
    #[default]
    Private,
    /// A namespace of the container, with a `/dev/shm` as large as the host's: replaces a denied namespace of the host.
    Large,
    /// A namespace of the container, without `/dev/shm`.
    None,
}
