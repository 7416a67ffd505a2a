//! What `options:` ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::device::{Device, DeviceRule};
use super::network::NetworkOptions;
use super::resources::{Resources, Ulimit};
use super::security::{Ipc, Namespace, SecurityOptions};
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
