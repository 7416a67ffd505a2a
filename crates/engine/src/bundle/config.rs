//! Builds `config.json` of the runtime specification. It writes no file: `write` does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oci_hooks_host::userns::PrivateIds;
use oci_hooks_image::ImageConfig;
use oci_spec::runtime::{
    Linux, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType, Process, Root, Spec,
    User as ProcessUser,
};
use serde::Serialize;

use super::capabilities::{self, CapabilitySet};
use super::command::{DEFAULT_PATH, ProcessEnvironment};
use super::devices::{DeviceNode, DeviceSet};
use super::mounts::{PreparedMounts, is_in_proc};
use super::options::{BundleOptions, ContainerInit, ContainerNamespaces, NamespaceSource};
use super::resources::{may_exceed_limits, oom_score_adj};
use super::rootfs_dir::normalize_path;
use super::seccomp::{SeccompFilter, seccomp};
use super::user::ContainerUser;
use super::{BundleError, command};

/// Version of the specification that runc 1.1 and crun 1.8 support.
const OCI_VERSION: &str = "1.0.2";

/// Paths of `/proc` and `/sys` that containers cannot see.
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

/// Paths of `/proc` that containers cannot change.
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Inputs of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct ConfigInputs<'a> {
    pub image: &'a ImageConfig,
    pub options: &'a BundleOptions,
    pub rootfs: &'a str,
    pub user: &'a ContainerUser,
    pub cwd: &'a str,
    pub mounts: &'a PreparedMounts,
    pub devices: &'a DeviceSet,
}

/// A configuration to serialize: types of `oci-spec`, and the seccomp filter, which these types cannot hold
/// if it is the administrator's profile.
#[derive(Debug, Serialize)]
pub struct BundleConfig<'a> {
    #[serde(flatten)]
    spec: Spec,
    linux: LinuxConfig<'a>,
}

#[derive(Debug, Serialize)]
struct LinuxConfig<'a> {
    #[serde(flatten)]
    linux: Linux,
    #[serde(skip_serializing_if = "Option::is_none")]
    seccomp: Option<SeccompFilter<'a>>,
}

/// Builds a configuration.
pub fn config<'a>(parts: &ConfigInputs<'a>) -> Result<BundleConfig<'a>, BundleError> {
    let ConfigInputs { options, user, .. } = *parts;
    if options.security.non_root && user.uid == 0 {
        return Err(BundleError::Root);
    }
    check_restricted(options, user)?;
    let available = capabilities::grantable_capabilities();
    let capabilities = capabilities::capabilities(&options.security, available)?;
    let has_uts = options.namespaces.uts != NamespaceSource::Host;
    let mut root = Root::default();
    root.set_path(parts.rootfs.into()).set_readonly(Some(options.read_only));
    let mut spec = Spec::default();
    spec.set_version(OCI_VERSION.to_owned())
        .set_process(Some(process(parts, capabilities, available)?))
        .set_root(Some(root))
        .set_mounts(Some(parts.mounts.entries.clone()))
        .set_hostname(options.hostname.clone().filter(|_| has_uts))
        .set_domainname(options.domainname.clone().filter(|_| has_uts))
        .set_annotations(Some(options.annotations.clone().into_iter().collect()))
        .set_linux(None);
    let seccomp = seccomp(&options.security, capabilities);
    Ok(BundleConfig { spec, linux: LinuxConfig { linux: linux(parts)?, seccomp } })
}

/// Rejects options that violate Kubernetes' "restricted" profile.
fn check_restricted(options: &BundleOptions, user: &ContainerUser) -> Result<(), BundleError> {
    let (security, namespaces) = (&options.security, &options.namespaces);
    if !security.restricted {
        return Ok(());
    }
    let uses_host = [&namespaces.network, &namespaces.pid, &namespaces.ipc];
    let forbidden = [
        (security.privileged, "be privileged"),
        (user.uid == 0, "run as root: name another user"),
        (security.seccomp == super::Seccomp::Unconfined, "run without a seccomp profile"),
        (security.unmask || security.nesting, "run with an unmasked /proc"),
        (uses_host.contains(&&NamespaceSource::Host), "share namespaces with the host"),
    ];
    match forbidden.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, what)) => Err(BundleError::Restricted { what }),
        None => Ok(()),
    }
}

/// Returns whether a container can run in a user namespace that another user owns. Only the owner has all capabilities
/// there; runtimes need some to open files of the container's processes in `/proc`, and to set limits of processes.
pub fn can_have_other_owner(options: &BundleOptions) -> bool {
    let available = capabilities::grantable_capabilities();
    available.contains(CapabilitySet::SYS_PTRACE)
        && (options.rlimits.is_empty() || may_exceed_limits(options.privilege, available))
}

fn process(
    parts: &ConfigInputs<'_>,
    capabilities: CapabilitySet,
    available: CapabilitySet,
) -> Result<Process, BundleError> {
    let ConfigInputs { image, options, user: runs_as, .. } = *parts;
    let security = &options.security;
    let may_raise = may_exceed_limits(options.privilege, available);
    let no_new_privileges =
        security.restricted || (security.no_new_privileges && !security.privileged);
    let rlimits = options.rlimits.iter().map(|limit| limit.to_spec(may_raise)).collect();
    let mut sets = capabilities::process_capabilities(capabilities, runs_as.uid);
    let gains_privileges = runs_as.uid != 0 && !no_new_privileges;
    let is_alone = options.namespaces.pid == NamespaceSource::Private;
    let starts_steps = options.init.as_ref().is_some_and(ContainerInit::starts_steps);
    if starts_steps && gains_privileges && is_alone && capabilities.contains(CapabilitySet::KILL) {
        capabilities::allow_kill(&mut sets);
    }
    let mut process = Process::default();
    process
        .set_terminal(Some(options.tty))
        .set_user(user(runs_as))
        .set_args(Some(command::args(image, options)?))
        .set_env(Some(environment(image, options, runs_as).into_entries()))
        .set_cwd(parts.cwd.into())
        .set_capabilities(Some(sets))
        .set_no_new_privileges(Some(no_new_privileges))
        .set_rlimits(Some(rlimits).filter(|limits: &Vec<_>| !limits.is_empty()))
        .set_oom_score_adj(options.oom_score_adj.map(|score| oom_score_adj(score, may_raise)))
        .set_apparmor_profile(security.apparmor_profile.clone())
        .set_selinux_label(security.selinux_label.clone());
    Ok(process)
}

/// Returns `process.user`.
pub fn user(user: &ContainerUser) -> ProcessUser {
    let mut typed = ProcessUser::default();
    typed.set_uid(user.uid).set_gid(user.gid).set_additional_gids(Some(user.groups.clone()));
    typed
}

fn environment(
    image: &ImageConfig,
    options: &BundleOptions,
    user: &ContainerUser,
) -> ProcessEnvironment {
    let mut environment = ProcessEnvironment::default();
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

fn linux(parts: &ConfigInputs<'_>) -> Result<Linux, BundleError> {
    let ConfigInputs { options, .. } = *parts;
    let security = &options.security;
    let DeviceSet { nodes, rules } = parts.devices;
    // Without a cgroup no limit is enforced, but runtimes would try.
    let resources = (!options.keeps_cgroup).then(|| {
        let mut resources = options.resources.to_spec();
        resources.set_devices(Some(rules.clone()));
        resources
    });
    let mappings = options.user_namespace.is_some().then(|| {
        let PrivateIds { first, count } = options.private_ids;
        let mapping =
            LinuxIdMappingBuilder::default().container_id(0_u32).host_id(first).size(count);
        vec![mapping.build().expect("every field has a default")]
    });
    let is_masked = !security.privileged && !security.unmask && !security.nesting;
    let paths = |paths: &[&str]| is_masked.then(|| paths.iter().map(ToString::to_string).collect());
    let path = options.cgroups_path.as_ref().filter(|_| !options.keeps_cgroup);
    let mut linux = Linux::default();
    linux
        .set_namespaces(Some(namespaces(options)))
        .set_resources(resources)
        .set_devices(Some(nodes.iter().map(DeviceNode::to_spec).collect()))
        .set_sysctl(Some(sysctls(options)?))
        .set_uid_mappings(mappings.clone())
        .set_gid_mappings(mappings)
        .set_cgroups_path(path.map(PathBuf::from))
        .set_masked_paths(paths(&MASKED_PATHS))
        .set_readonly_paths(paths(&READONLY_PATHS))
        .set_rootfs_propagation(parts.mounts.propagation.map(str::to_owned));
    Ok(linux)
}

fn namespaces(options: &BundleOptions) -> Vec<LinuxNamespace> {
    let namespaces = &options.namespaces;
    let user = options.user_namespace.clone().map_or(NamespaceSource::Host, NamespaceSource::Path);
    let kinds = [
        (LinuxNamespaceType::User, &user),
        (LinuxNamespaceType::Mount, &NamespaceSource::Private),
        (LinuxNamespaceType::Pid, &namespaces.pid),
        (LinuxNamespaceType::Ipc, &namespaces.ipc),
        (LinuxNamespaceType::Uts, &namespaces.uts),
        (LinuxNamespaceType::Cgroup, &namespaces.cgroup),
        (LinuxNamespaceType::Network, &namespaces.network),
    ];
    let entry = |(kind, namespace): (_, &NamespaceSource)| {
        let path = match namespace {
            NamespaceSource::Host => return None,
            NamespaceSource::Private => None,
            NamespaceSource::Path(path) => Some(path.clone()),
        };
        let mut entry = LinuxNamespace::default();
        entry.set_typ(kind).set_path(path);
        Some(entry)
    };
    kinds.into_iter().filter_map(entry).collect()
}

fn sysctls(options: &BundleOptions) -> Result<HashMap<String, String>, BundleError> {
    let has_network = options.namespaces.network != NamespaceSource::Host;
    let mut sysctls = HashMap::new();
    // As in Docker: every user may listen on any port and send echo requests.
    if has_network {
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
        // Groups outside the user namespace cannot be named in it.
        let last = match options.user_namespace {
            Some(_) => Some(options.private_ids.count - 1),
            None => options.privilege.last_gid(),
        };
        if let Some(last) = last {
            sysctls.insert("net.ipv4.ping_group_range".to_owned(), format!("0 {last}"));
        }
    }
    for (name, value) in &options.sysctls {
        if !owns_sysctl(&options.namespaces, name) {
            return Err(BundleError::Sysctl { name: name.clone() });
        }
        sysctls.insert(name.clone(), value.clone());
    }
    Ok(sysctls)
}

/// Returns whether a sysctl belongs to a namespace that the container does not share with the host.
pub fn owns_sysctl(namespaces: &ContainerNamespaces, name: &str) -> bool {
    let has_network = namespaces.network != NamespaceSource::Host;
    let has_ipc = namespaces.ipc != NamespaceSource::Host;
    let is_ipc = ["kernel.msg", "kernel.shm", "fs.mqueue."].iter().any(|p| name.starts_with(p))
        || name == "kernel.sem";
    // With slashes, as in paths below /proc/sys, `net.` could lead elsewhere.
    let is_path = name.contains('/') || name.contains("..");
    !is_path && ((is_ipc && has_ipc) || (name.starts_with("net.") && has_network))
}

/// Returns a working directory without `..`, if processes may start in it.
///
/// Directories in `/proc` lead out of the container through descriptors that the runtime has open
/// (CVE-2024-21626).
pub fn checked_cwd(cwd: &Path) -> Result<PathBuf, BundleError> {
    if !cwd.is_absolute() {
        return Err(BundleError::RelativeCwd { path: cwd.to_owned() });
    }
    let path = normalize_path(cwd);
    if is_in_proc(&path) {
        return Err(BundleError::CwdInProc { path: cwd.to_owned() });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use oci_hooks_host::privilege::{MappedIds, Privilege};
    use serde_json::{Value, json};

    use super::super::stage::MountStage;
    use super::*;
    use crate::bundle::ContainerSecurity;

    fn root() -> ContainerUser {
        ContainerUser { uid: 0, gid: 0, groups: vec![0], home: "/root".to_owned() }
    }

    fn image() -> ImageConfig {
        ImageConfig {
            cmd: Some(vec!["serve".to_owned()]),
            env: vec!["A=image".to_owned(), "PATH=/opt/bin:/bin".to_owned()],
            ..ImageConfig::default()
        }
    }

    fn build_for(options: &BundleOptions, user: &ContainerUser) -> Result<Value, BundleError> {
        let stage = MountStage::new(Path::new("/disk"), Path::new("/rootfs"));
        let mounts = PreparedMounts { entries: Vec::new(), propagation: None, stage };
        let privileged = options.security.privileged;
        let devices = super::super::devices::devices(&options.devices, &[], privileged).unwrap();
        let image = image();
        let parts = ConfigInputs {
            image: &image,
            options,
            rootfs: "/rootfs",
            user,
            cwd: "/",
            mounts: &mounts,
            devices: &devices,
        };
        config(&parts).map(|config| serde_json::to_value(config).unwrap())
    }

    fn build(options: &BundleOptions) -> Value {
        build_for(options, &root()).unwrap()
    }

    #[test]
    fn default_options_confine_the_container() {
        let config = build(&BundleOptions::default());
        let process = &config["process"];
        assert_eq!(process["noNewPrivileges"], true);
        assert_eq!(process["args"], json!(["serve"]));
        let linux = &config["linux"];
        assert_eq!(linux["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
        assert!(linux["maskedPaths"].as_array().unwrap().contains(&json!("/proc/kcore")));
        assert!(linux["readonlyPaths"].as_array().unwrap().contains(&json!("/proc/sys")));
        assert_eq!(linux["resources"]["pids"]["limit"], 32768);
        let kinds: Vec<&str> = linux["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|n| n["type"].as_str())
            .collect();
        assert_eq!(kinds, ["mount", "pid", "ipc", "uts", "cgroup", "network"]);
    }

    #[test]
    fn environment_has_dockers_order_and_a_home() {
        let options = BundleOptions {
            hostname: Some("box".to_owned()),
            env: vec!["A=mine".to_owned(), "B=2".to_owned()],
            prepend_path: vec!["/tools".to_owned()],
            tty: true,
            ..BundleOptions::default()
        };
        let expected = json!([
            "PATH=/tools:/opt/bin:/bin",
            "HOSTNAME=box",
            "TERM=xterm",
            "A=mine",
            "B=2",
            "HOME=/root"
        ]);
        assert_eq!(build(&options)["process"]["env"], expected);
    }

    #[test]
    fn namespaces_come_from_the_requested_source() {
        let mut options =
            BundleOptions { hostname: Some("box".to_owned()), ..BundleOptions::default() };
        options.namespaces.network = NamespaceSource::Path("/run/netns/x".into());
        options.namespaces.uts = NamespaceSource::Host;
        let config = build(&options);
        let namespaces = config["linux"]["namespaces"].as_array().unwrap();
        assert!(namespaces.contains(&json!({"type": "network", "path": "/run/netns/x"})));
        assert!(!namespaces.contains(&json!({"type": "uts"})));
        assert_eq!(config["hostname"], Value::Null);
    }

    #[test]
    fn a_privileged_container_is_not_confined() {
        let options = BundleOptions {
            security: ContainerSecurity { privileged: true, ..ContainerSecurity::default() },
            ..BundleOptions::default()
        };
        let config = build(&options);
        for key in ["seccomp", "maskedPaths", "readonlyPaths"] {
            assert_eq!(config["linux"][key], Value::Null, "{key}");
        }
        assert_eq!(config["process"]["noNewPrivileges"], false);
        assert_eq!(config["linux"]["resources"]["devices"][0]["allow"], true);
    }

    #[test]
    fn kernel_parameters_of_the_host_are_rejected() {
        let set = |name: &str, host: bool| {
            let mut options = BundleOptions::default();
            options.sysctls.insert(name.to_owned(), "1".to_owned());
            if host {
                options.namespaces.network = NamespaceSource::Host;
                options.namespaces.ipc = NamespaceSource::Host;
            }
            build_for(&options, &root())
        };
        for name in ["net.core.somaxconn", "kernel.shmmax", "kernel.sem", "fs.mqueue.msg_max"] {
            assert!(set(name, false).is_ok(), "{name}");
            assert!(set(name, true).is_err(), "{name}");
        }
        for name in ["kernel.core_pattern", "vm.swappiness", "net.../kernel/core_pattern", "net/x"]
        {
            assert!(set(name, false).is_err(), "{name}");
        }
    }

    #[test]
    fn restricted_profile_rejects_conflicting_options() {
        let restricted = |change: fn(&mut BundleOptions), uid| {
            let mut options = BundleOptions::default();
            options.security.restricted = true;
            options.security.no_new_privileges = false;
            change(&mut options);
            build_for(&options, &ContainerUser { uid, ..root() })
        };
        let config = restricted(|_| {}, 1000).unwrap();
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["process"]["capabilities"]["bounding"], json!([]));
        assert!(restricted(|_| {}, 0).is_err());
        assert!(restricted(|o| o.security.privileged = true, 1000).is_err());
        assert!(restricted(|o| o.security.unmask = true, 1000).is_err());
        assert!(
            restricted(|o| o.security.seccomp = crate::bundle::Seccomp::Unconfined, 1000).is_err()
        );
        assert!(restricted(|o| o.security.cap_add = vec!["ALL".to_owned()], 1000).is_err());
        assert!(restricted(|o| o.namespaces.pid = NamespaceSource::Host, 1000).is_err());
    }

    #[test]
    fn non_root_option_rejects_root() {
        let security = ContainerSecurity { non_root: true, ..ContainerSecurity::default() };
        let options = BundleOptions { security, ..BundleOptions::default() };
        assert!(matches!(build_for(&options, &root()), Err(BundleError::Root)));
        assert!(build_for(&options, &ContainerUser { uid: 1000, ..root() }).is_ok());
    }

    #[test]
    fn step_init_can_kill_processes_started_by_sudo() {
        let ambient = |change: fn(&mut BundleOptions), uid| {
            let init = ContainerInit {
                program: "/x".into(),
                args: vec!["steps".to_owned()],
                idle_only: true,
            };
            let mut options = BundleOptions { init: Some(init), ..BundleOptions::default() };
            options.security.no_new_privileges = false;
            change(&mut options);
            let config = build_for(&options, &ContainerUser { uid, ..root() }).unwrap();
            config["process"]["capabilities"]["ambient"].clone()
        };
        assert_eq!(ambient(|_| {}, 1000), json!(["CAP_KILL"]));
        assert_eq!(ambient(|_| {}, 0), json!([]));
        assert_eq!(ambient(|o| o.security.no_new_privileges = true, 1000), json!([]));
        assert_eq!(ambient(|o| o.security.cap_drop = vec!["KILL".to_owned()], 1000), json!([]));
        assert_eq!(ambient(|o| o.namespaces.pid = NamespaceSource::Host, 1000), json!([]));
        assert_eq!(ambient(|o| o.init.as_mut().unwrap().args.clear(), 1000), json!([]));
    }

    #[test]
    fn container_that_keeps_its_cgroup_has_no_cgroup_limits() {
        let options = BundleOptions {
            cgroups_path: Some("/oci-hooks/1a".to_owned()),
            keeps_cgroup: true,
            ..BundleOptions::default()
        };
        let linux = &build(&options)["linux"];
        assert_eq!((&linux["cgroupsPath"], &linux["resources"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn ids_and_limits_fit_an_ordinary_user() {
        let range = "net.ipv4.ping_group_range";
        let of = |privilege| build(&BundleOptions { privilege, ..BundleOptions::default() });
        let mapped = Privilege::Mapped(MappedIds { uids: 11, gids: 1001 });
        assert_eq!(of(Privilege::Root)["linux"]["sysctl"][range], "0 2147483647");
        assert_eq!(of(mapped)["linux"]["sysctl"][range], "0 1000");
        assert_eq!(of(Privilege::Single)["linux"]["sysctl"].get(range), None);
        for privilege in [mapped, Privilege::Single] {
            let score = Some(-1000);
            let config = build(&BundleOptions {
                privilege,
                oom_score_adj: score,
                ..BundleOptions::default()
            });
            // Lowering the score requires root of the host, whatever capabilities this process has.
            assert_eq!(config["process"]["oomScoreAdj"], oom_score_adj(-1000, false));
            let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
            let limit = crate::bundle::ProcessRlimit::new("nofile", None, None).unwrap();
            let config = build(&BundleOptions {
                privilege,
                rlimits: vec![limit],
                ..BundleOptions::default()
            });
            assert_eq!(config["process"]["rlimits"][0]["hard"].as_u64(), most);
        }
    }
}
