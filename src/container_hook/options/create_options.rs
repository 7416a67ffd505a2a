//! What `options:` ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::container_hook::volumes::{Tmpfs, Volume};

/// The `options:` of a container, as far as they are not the defaults.
///
/// A field that is `None`, empty or false keeps what the image or the engine has.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// `--name`: another name to be reached by.
    pub name: Option<String>,
    /// `--hostname`; none for the beginning of its id.
    pub hostname: Option<String>,
    pub domainname: Option<String>,
    /// `--platform`: `OS[/ARCHITECTURE[/VARIANT]]`.
    pub platform: Option<String>,
    /// `--pull`; none for what the settings say.
    pub pull: Option<Pull>,
    /// `--entrypoint`; empty clears the image's.
    pub entrypoint: Option<String>,
    /// `--user`: `USER[:GROUP]`, names or numbers.
    pub user: Option<String>,
    /// `--group-add`: names or numbers.
    pub groups: Vec<String>,
    /// `--workdir`: an absolute path.
    pub workdir: Option<String>,
    /// `--env`, each variable once: the last one counts, in the place of the first.
    pub env: Vec<Variable>,
    /// `--label`, by key; the last one counts.
    pub labels: BTreeMap<String, String>,
    /// `--annotation`, by key; the last one counts.
    pub annotations: BTreeMap<String, String>,
    /// `--init`: whether a first process of ours reaps orphans.
    pub init: Option<bool>,
    /// `--read-only`: the root file system.
    pub read_only: bool,
    /// `--stop-signal`: a name or number.
    pub stop_signal: Option<String>,
    /// `--stop-timeout`: the time from signal to kill.
    pub stop_timeout: Option<Duration>,
    /// The network and everything about names and ports.
    pub network: NetworkOptions,
    /// `--volume` and `--mount`, but for `tmpfs`.
    pub volumes: Vec<Volume>,
    /// `--tmpfs` and `--mount type=tmpfs`.
    pub tmpfs: Vec<Tmpfs>,
    /// `--shm-size` in bytes.
    pub shm_size_bytes: Option<u64>,
    /// `--health-*` and `--no-healthcheck`.
    pub health: HealthOptions,
    /// Namespaces of the host to be in: `--pid=host`, `--ipc=host` and so on. That of the network is
    /// in [`NetworkOptions::mode`].
    pub host_namespaces: BTreeSet<Namespace>,
    /// `--ipc`: what the container has if it has not the host's namespace.
    pub ipc: Ipc,
    /// Capabilities and everything else that confines.
    pub security: SecurityOptions,
    pub devices: Vec<Device>,
    /// `--device-cgroup-rule`.
    pub device_rules: Vec<DeviceRule>,
    /// `--gpus`.
    pub gpus: bool,
    /// How many of them; none for all that there are.
    pub gpu_count: Option<u32>,
    /// The devices that it stands for, once the policy was asked.
    pub gpu_devices: Vec<Device>,
    /// The files that it stands for, once the policy was asked.
    pub gpu_volumes: Vec<Volume>,
    /// Limits on CPUs, memory and so on.
    pub resources: Resources,
    /// `--ulimit`, each resource once.
    pub ulimits: Vec<Ulimit>,
    pub sysctls: BTreeMap<String, String>,
    /// Options that were taken but have nothing to act on. Say so in the log.
    pub without_effect: Vec<WithoutEffect>,
}

/// When to look for a newer image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    Always,
    Missing,
    Never,
}

/// An environment variable of `--env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    /// Its value; none takes the image's variable of that name away. (The reference takes the value
    /// from the environment of the runner's worker; that is none of the job's business.)
    pub value: Option<String>,
}

/// What differs from the image's health check. A field that is none keeps the image's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthOptions {
    /// `--no-healthcheck`.
    pub disabled: bool,
    /// `--health-cmd`: a line for the container's shell.
    pub command: Option<String>,
    pub interval: Option<Duration>,
    pub timeout: Option<Duration>,
    pub start_period: Option<Duration>,
    pub start_interval: Option<Duration>,
    pub retries: Option<u32>,
}

/// An option that was taken but changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WithoutEffect {
    /// The option's name, without dashes.
    pub option: &'static str,
    pub reason: &'static str,
}

/// A device of the host, or a directory of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its absolute path on the host.
    pub host: PathBuf,
    /// Its absolute path in the container.
    pub container: String,
    /// What is allowed: of `r`, `w` and `m`.
    pub access: String,
}

/// A rule for the cgroup: which devices may be used if they are there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceRule {
    /// `a`, `b` or `c`.
    pub kind: char,
    /// The major number; none is each.
    pub major: Option<u32>,
    /// The minor number; none is each.
    pub minor: Option<u32>,
    /// What is allowed: of `r`, `w` and `m`.
    pub access: String,
}

/// The network and everything about names and ports.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// `--network`.
    pub mode: NetworkMode,
    /// `--network-alias`: more names to be reached by.
    pub aliases: Vec<String>,
    /// `--add-host`: names and their addresses.
    pub hosts: Vec<Host>,
    /// `--dns`: name servers instead of the host's.
    pub dns: Vec<IpAddr>,
    pub dns_options: Vec<String>,
    /// `--dns-search`; a single `.` is none at all.
    pub dns_search: Vec<String>,
    /// `--publish`, as written.
    pub publish: Vec<String>,
    /// `--publish-all`: every exposed port, each on a free one of the host.
    pub publish_all: bool,
    /// `--expose`: ports besides the image's.
    pub expose: Vec<ExposedPort>,
}

/// What network a container is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    #[default]
    Job,
    Host,
    /// Only its own loopback interface.
    None,
}

/// An entry of `/etc/hosts`, from `--add-host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub address: HostAddress,
}

/// What a name of `--add-host` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAddress {
    Address(IpAddr),
    /// The host, seen from the container: `host-gateway`.
    Gateway,
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ExposedPort {
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
}

/// Limits on CPUs, memory and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// `--cpus` in billionths of a processor.
    pub nano_cpus: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// `--cpu-period` in microseconds.
    pub cpu_period: Option<u64>,
    /// `--cpu-quota` in microseconds of a period; -1 is no limit.
    pub cpu_quota: Option<i64>,
    /// `--cpuset-cpus`, such as `0-2,4`.
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    /// `--memory` in bytes.
    pub memory_bytes: Option<u64>,
    /// `--memory-reservation` in bytes.
    pub memory_reservation_bytes: Option<u64>,
    /// `--memory-swap`: memory and swap together.
    pub memory_swap: Option<Swap>,
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

/// How much memory and swap together may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// As much as there is.
    Unlimited,
    Bytes(u64),
}

/// A limit of `setrlimit(2)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ulimit {
    /// The resource, such as `nofile`.
    pub name: &'static str,
    /// The soft limit; `u64::MAX` is none.
    pub soft: u64,
    /// The hard limit; `u64::MAX` is none.
    pub hard: u64,
}

/// Capabilities and everything else that confines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecurityOptions {
    pub privileged: bool,
    /// `--cap-add`: `ALL` or names with `CAP_`.
    pub cap_add: Vec<String>,
    /// `--cap-drop`: `ALL` or names with `CAP_`.
    pub cap_drop: Vec<String>,
    /// `--security-opt seccomp=unconfined`: no filter.
    pub seccomp_unconfined: bool,
    /// `--security-opt apparmor=`: the profile's name.
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
pub enum Namespace {
    Cgroup,
    /// Message queues, semaphores and shared memory.
    Ipc,
    Network,
    Pid,
    Uts,
}

impl Namespace {
    /// All of them.
    pub const ALL: [Namespace; 5] =
        [Namespace::Cgroup, Namespace::Ipc, Namespace::Network, Namespace::Pid, Namespace::Uts];

    /// Returns the name, as in the policy.
    pub fn name(self) -> &'static str {
        match self {
            Namespace::Cgroup => "cgroup",
            Namespace::Ipc => "ipc",
            Namespace::Network => "network",
            Namespace::Pid => "pid",
            Namespace::Uts => "uts",
        }
    }

    /// Returns the option that asks for the host's.
    pub fn option(self) -> &'static str {
        match self {
            Namespace::Cgroup => "--cgroupns",
            Namespace::Ipc => "--ipc",
            Namespace::Network => "--network",
            Namespace::Pid => "--pid",
            Namespace::Uts => "--uts",
        }
    }
}

/// A container's own IPC namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipc {
    /// With `/dev/shm`.
    #[default]
    Private,
    /// With a `/dev/shm` as large as the host's.
    Large,
    /// Without `/dev/shm`.
    None,
}
