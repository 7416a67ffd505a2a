//! The configuration of the runtime specification, put together.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::capabilities::{self, CapabilitySet};
use super::devices::{Devices, Node};
use super::environment::{DEFAULT_PATH, Environment};
use super::inside::normal;
use super::mounts::{Mounts, is_in_proc};
use super::options::{Namespace, Namespaces, Options};
use super::resources::oom_score_adj;
use super::seccomp::seccomp;
use super::user::User;
use super::{BundleError, command};
use crate::image::ImageConfig;
use crate::sys::userns::PrivateIds;

/// The version of the specification that runc 1.1 and crun 1.8 know.
const OCI_VERSION: &str = "1.0.2";

/// What of `/proc` and `/sys` containers cannot see.
const MASKED_PATHS: [&str; 13] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
];

/// What of `/proc` containers cannot change.
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What was found out before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub(super) image: &'a ImageConfig,
    pub(super) options: &'a Options,
    pub(super) rootfs: &'a str,
    pub(super) user: &'a User,
    pub(super) cwd: &'a str,
    pub(super) mounts: &'a Mounts,
    pub(super) devices: &'a Devices,
}

/// Puts a configuration together.
pub(super) fn config(parts: &Parts<'_>) -> Result<Value, BundleError> {
    let Parts { options, user, .. } = *parts;
    if options.security.non_root && user.uid == 0 {
        return Err(BundleError::Root);
    }
    check_restricted(options, user)?;
    let available = capabilities::available();
    let capabilities = capabilities::capabilities(&options.security, available)?;
    let mut config = json!({
        "ociVersion": OCI_VERSION,
        "process": process(parts, capabilities, available)?,
        "root": {"path": parts.rootfs, "readonly": options.read_only},
        "mounts": parts.mounts.entries,
        "linux": linux(parts, capabilities)?,
        "annotations": options.annotations,
    });
    if options.namespaces.uts != Namespace::Host {
        for (key, name) in [("hostname", &options.hostname), ("domainname", &options.domainname)] {
            if let Some(name) = name {
                config[key] = json!(name);
            }
        }
    }
    Ok(config)
}

/// Checks what Kubernetes' "restricted" wants and options could say otherwise.
fn check_restricted(options: &Options, user: &User) -> Result<(), BundleError> {
    let (security, namespaces) = (&options.security, &options.namespaces);
    if !security.restricted {
        return Ok(());
    }
    let uses_host = [&namespaces.network, &namespaces.pid, &namespaces.ipc];
    let forbidden = [
        (security.privileged, "be privileged"),
        (user.uid == 0, "run as root: name another user"),
        (security.seccomp == super::Seccomp::Unconfined, "make any system call"),
        (security.unmask, "see all of /proc"),
        (uses_host.contains(&&Namespace::Host), "share namespaces of the host"),
    ];
    match forbidden.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, what)) => Err(BundleError::Restricted { what }),
        None => Ok(()),
    }
}

fn process(
    parts: &Parts<'_>,
    capabilities: CapabilitySet,
    available: CapabilitySet,
) -> Result<Value, BundleError> {
    let Parts { image, options, user: runs_as, .. } = *parts;
    let security = &options.security;
    let may_raise = available.contains(CapabilitySet::SYS_RESOURCE);
    let mut process = json!({
        "terminal": options.tty,
        "user": user(runs_as),
        "args": command::args(image, options)?,
        "env": environment(image, options, runs_as).into_entries(),
        "cwd": parts.cwd,
        "capabilities": capabilities::to_json(capabilities, runs_as.uid),
        "noNewPrivileges": security.restricted
            || (security.no_new_privileges && !security.privileged),
    });
    if !options.rlimits.is_empty() {
        let limits: Vec<Value> = options.rlimits.iter().map(|l| l.to_json(may_raise)).collect();
        process["rlimits"] = json!(limits);
    }
    if let Some(score) = options.oom_score_adj {
        process["oomScoreAdj"] = json!(oom_score_adj(score, may_raise));
    }
    let labels = [
        ("apparmorProfile", &security.apparmor_profile),
        ("selinuxLabel", &security.selinux_label),
    ];
    for (key, label) in labels {
        if let Some(label) = label {
            process[key] = json!(label);
        }
    }
    Ok(process)
}

/// Returns `process.user`.
pub(super) fn user(user: &User) -> Value {
    json!({"uid": user.uid, "gid": user.gid, "additionalGids": user.groups})
}

fn environment(image: &ImageConfig, options: &Options, user: &User) -> Environment {
    let mut environment = Environment::default();
    environment.set("PATH", DEFAULT_PATH);
    if let Some(hostname) = &options.hostname {
        environment.set("HOSTNAME", hostname);
    }
    if options.tty {
        environment.set("TERM", "xterm");
    }
    environment.extend(image.env.iter().map(String::as_str));
    environment.extend(options.env.iter().map(String::as_str));
    environment.prepend_path(&options.prepend_path);
    environment.set_default("HOME", &user.home);
    environment
}

fn linux(parts: &Parts<'_>, capabilities: CapabilitySet) -> Result<Value, BundleError> {
    let Parts { options, .. } = *parts;
    let security = &options.security;
    let Devices { nodes, rules } = parts.devices;
    let nodes: Vec<_> = nodes.iter().map(Node::to_json).collect();
    let mut resources = options.resources.to_json();
    resources.insert("devices".to_owned(), json!(rules));
    let mut linux = json!({
        "namespaces": namespaces(options),
        "resources": resources,
        "devices": nodes,
        "sysctl": sysctls(options)?,
    });
    if options.user_namespace.is_some() {
        let PrivateIds { first, count } = options.private_ids;
        let mappings = json!([{"containerID": 0, "hostID": first, "size": count}]);
        linux["uidMappings"] = mappings.clone();
        linux["gidMappings"] = mappings;
    }
    if let Some(path) = &options.cgroups_path {
        linux["cgroupsPath"] = json!(path);
    }
    if let Some(seccomp) = seccomp(security, capabilities) {
        linux["seccomp"] = seccomp;
    }
    if !security.privileged && !security.unmask {
        linux["maskedPaths"] = json!(MASKED_PATHS);
        linux["readonlyPaths"] = json!(READONLY_PATHS);
    }
    if let Some(propagation) = parts.mounts.propagation {
        linux["rootfsPropagation"] = json!(propagation);
    }
    Ok(linux)
}

fn namespaces(options: &Options) -> Vec<Value> {
    let namespaces = &options.namespaces;
    let user = options.user_namespace.clone().map_or(Namespace::Host, Namespace::Path);
    let kinds = [
        ("user", &user),
        ("mount", &Namespace::Private),
        ("pid", &namespaces.pid),
        ("ipc", &namespaces.ipc),
        ("uts", &namespaces.uts),
        ("cgroup", &namespaces.cgroup),
        ("network", &namespaces.network),
    ];
    kinds
        .into_iter()
        .filter_map(|(kind, namespace)| match namespace {
            Namespace::Host => None,
            Namespace::Private => Some(json!({"type": kind})),
            Namespace::Path(path) => Some(json!({"type": kind, "path": path})),
        })
        .collect()
}

fn sysctls(options: &Options) -> Result<Map<String, Value>, BundleError> {
    let has_network = options.namespaces.network != Namespace::Host;
    let mut sysctls = Map::new();
    // As Docker sets them: any user may serve any port and send echo requests.
    if has_network {
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), json!("0"));
        // Groups that a user namespace does not have cannot be named in it.
        let last = if options.user_namespace.is_some() {
            options.private_ids.count - 1
        } else {
            i32::MAX.cast_unsigned()
        };
        sysctls.insert("net.ipv4.ping_group_range".to_owned(), json!(format!("0 {last}")));
    }
    for (name, value) in &options.sysctls {
        if !owns_sysctl(&options.namespaces, name) {
            return Err(BundleError::Sysctl { name: name.clone() });
        }
        sysctls.insert(name.clone(), json!(value));
    }
    Ok(sysctls)
}

/// Tells if a kernel parameter is of a namespace that a container has for itself.
pub fn owns_sysctl(namespaces: &Namespaces, name: &str) -> bool {
    let has_network = namespaces.network != Namespace::Host;
    let has_ipc = namespaces.ipc != Namespace::Host;
    let is_ipc = ["kernel.msg", "kernel.shm", "fs.mqueue."].iter().any(|p| name.starts_with(p))
        || name == "kernel.sem";
    // With slashes, as the kernel's own files have them, `net.` could lead elsewhere.
    let is_path = name.contains('/') || name.contains("..");
    !is_path && ((is_ipc && has_ipc) || (name.starts_with("net.") && has_network))
}

/// Returns a working directory without `..`, if it is one a process may start in.
///
/// Directories in `/proc` lead out of the container through descriptors that the runtime has open
/// (CVE-2024-21626).
pub(super) fn checked_cwd(cwd: &Path) -> Result<PathBuf, BundleError> {
    if !cwd.is_absolute() {
        return Err(BundleError::RelativeCwd { path: cwd.to_owned() });
    }
    let path = normal(cwd);
    if is_in_proc(&path) {
        return Err(BundleError::CwdInProc { path: cwd.to_owned() });
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
