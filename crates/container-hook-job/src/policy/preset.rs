//! Policy presets, and the policy in a settings file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oci_hooks_engine::bundle::DeviceRule;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{ContainerMax, GpuPolicy, Policy};
use crate::options::HostNamespace;

/// A named policy, which supplies the values of keys that are unset in the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Allows only options that cannot reach the host or another job.
    #[default]
    Default,
    /// Allows what users of Docker's socket can have: root on the host.
    Docker,
}

/// Docker's default capabilities without `MKNOD`, plus two that affect only the container: `IPC_LOCK` and
/// `SYS_PTRACE`.
const CAPABILITIES: [&str; 15] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "KILL",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "SYS_PTRACE",
];

/// A policy in a settings file; unset keys have the value of the preset.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WrittenPolicy {
    #[serde(default)]
    preset: Preset,
    privileged: Option<bool>,
    host_namespaces: Option<Vec<HostNamespace>>,
    bind_mounts: Option<Vec<PathBuf>>,
    shared_mounts: Option<bool>,
    devices: Option<Vec<PathBuf>>,
    device_rules: Option<Vec<DeviceRule>>,
    capabilities: Option<Vec<String>>,
    security_opts: Option<Vec<String>>,
    nesting: Option<bool>,
    annotations: Option<Vec<String>>,
    oom_protection: Option<bool>,
    max_pids: Option<u64>,
    gpus: Option<GpuPolicy>,
    #[serde(default)]
    max: ContainerMax,
    #[serde(default, deserialize_with = "read_runtimes")]
    runtimes: BTreeMap<String, String>,
}

fn read_runtimes<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let mut runtimes = BTreeMap::new();
    for (name, runtime) in BTreeMap::<String, String>::deserialize(from)? {
        let pattern = name.strip_suffix('*').unwrap_or(&name);
        if pattern.contains('*') || !name.contains('/') && name != "*" {
            return Err(D::Error::custom(format_args!(
                "{name:?} is not a repository: expected OWNER/REPOSITORY, OWNER/* or *"
            )));
        }
        if runtime.is_empty() || runtime.contains('/') && !runtime.starts_with('/') {
            return Err(D::Error::custom(format_args!(
                "{runtime:?} is not a runtime: expected an absolute path, or the name of a RuntimeClass"
            )));
        }
        if runtimes.insert(name.to_lowercase(), runtime).is_some() {
            return Err(D::Error::custom(format_args!(
                "{name:?} occurs twice: upper and lower case are not distinguished"
            )));
        }
    }
    Ok(runtimes)
}

impl From<WrittenPolicy> for Policy {
    fn from(written: WrittenPolicy) -> Self {
        let preset = Policy::of(written.preset);
        Policy {
            privileged: written.privileged.unwrap_or(preset.privileged),
            host_namespaces: written.host_namespaces.unwrap_or(preset.host_namespaces),
            bind_mounts: written.bind_mounts.unwrap_or(preset.bind_mounts),
            shared_mounts: written.shared_mounts.unwrap_or(preset.shared_mounts),
            devices: written.devices.unwrap_or(preset.devices),
            device_rules: written.device_rules.unwrap_or(preset.device_rules),
            capabilities: written.capabilities.unwrap_or(preset.capabilities),
            security_opts: written.security_opts.unwrap_or(preset.security_opts),
            nesting: written.nesting.unwrap_or(preset.nesting),
            annotations: written.annotations.unwrap_or(preset.annotations),
            oom_protection: written.oom_protection.unwrap_or(preset.oom_protection),
            max_pids: written.max_pids.unwrap_or(preset.max_pids),
            gpus: written.gpus.or(preset.gpus),
            max: written.max,
            runtimes: written.runtimes,
            preset: written.preset,
            file: None,
        }
    }
}

impl Policy {
    /// Returns the policy of a preset.
    pub fn of(preset: Preset) -> Self {
        match preset {
            Preset::Default => Policy {
                preset,
                privileged: false,
                host_namespaces: Vec::new(),
                bind_mounts: Vec::new(),
                shared_mounts: false,
                devices: Vec::new(),
                device_rules: Vec::new(),
                capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
                security_opts: Vec::new(),
                nesting: false,
                annotations: Vec::new(),
                oom_protection: false,
                max_pids: 32768,
                gpus: None,
                max: ContainerMax::default(),
                runtimes: BTreeMap::new(),
                file: None,
            },
            Preset::Docker => Policy::of_docker(),
        }
    }

    fn of_docker() -> Self {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Policy {
            preset: Preset::Docker,
            privileged: true,
            host_namespaces: HostNamespace::ALL.to_vec(),
            bind_mounts: vec![PathBuf::from("/")],
            shared_mounts: true,
            devices: vec![PathBuf::from("/dev"), PathBuf::from("*")],
            device_rules: vec!["a *:* rwm".parse().expect("it is a rule")],
            capabilities: texts(&["ALL"]),
            security_opts: texts(&[
                "apparmor=*",
                "no-new-privileges=false",
                "seccomp=unconfined",
                "systempaths=unconfined",
            ]),
            annotations: texts(&["*"]),
            oom_protection: true,
            max_pids: 0,
            gpus: Some(GpuPolicy { devices: texts(&["/dev/nvidia*"]), volumes: Vec::new() }),
            // Like Docker's default, without nested user namespaces.
            ..Policy::of(Preset::Default)
        }
    }

    /// Returns whether users who can change a workflow can become root on the host; messages and checks warn
    /// about it.
    pub fn gives_root(&self) -> bool {
        self.privileged || self.bind_mounts.iter().any(|path| path == "/")
    }
}
