//! Effects of `options:` on a pod, in one table.
//!
//! Options with more complex effects are elsewhere: programs, variables, ports, volumes, health checks, host
//! names.

use std::collections::BTreeMap;

use container_hook_job::HookError;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::options::{
    CreateOptions, GpuOption, HostNamespace, IneffectiveOption, IpcMode, NetworkMode, PullOption,
};
use container_hook_job::policy::{PolicyDenial, PolicyError};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::pod_wide::PodWide;
use super::requested::RequestedContainer;

enum OptionEffect {
    Container(fn(ContainerChange<'_>) -> Result<(), HookError>),
    Pod(fn(&RequestedContainer<'_>, &mut PodWide) -> Result<(), HookError>),
    /// The option has no effect on a pod, for this reason.
    Nothing(&'static str),
}

use OptionEffect::{Container as OfContainer, Nothing, Pod};

/// A container to change, with its options and the settings.
struct ContainerChange<'a> {
    options: &'a CreateOptions,
    settings: &'a KubernetesSettings,
    to: &'a mut Container,
}

/// A row of `TABLE`: an option, and its effect on a pod.
struct OptionRow {
    /// Option name without dashes, with its value if the row is about one value.
    option: &'static str,
    is_asked: fn(&CreateOptions) -> bool,
    meaning: OptionEffect,
}

const KUBELET: &str = "in a cluster, only the kubelet's configuration determines this";
const NODES: &str =
    "in a cluster, the kubelet chooses the CPUs and the memory nodes of a container";
const OOM: &str =
    "in a cluster, the kubelet sets the OOM score adjustment from the resource requests and limits";

const TABLE: [OptionRow; 36] = [
    row("memory", |o| o.resources.memory_bytes.is_some(), OfContainer(memory)),
    row(
        "memory-reservation",
        |o| o.resources.memory_reservation_bytes.is_some(),
        OfContainer(memory_reservation),
    ),
    row("cpus", |o| limit_nanos(o).is_some(), OfContainer(cpus)),
    row("cpu-shares", |o| o.resources.cpu_shares.is_some(), OfContainer(cpu_shares)),
    row("gpus", |o| o.gpus.is_some(), OfContainer(gpus)),
    row("user", |o| o.user.is_some(), OfContainer(user)),
    row("read-only", |o| o.read_only, OfContainer(read_only)),
    row("privileged", |o| o.security.privileged, OfContainer(privileged)),
    row(
        "cap-add, --cap-drop",
        |o| !o.security.cap_add.is_empty() || !o.security.cap_drop.is_empty(),
        OfContainer(capabilities),
    ),
    row("security-opt", |_| true, OfContainer(security)),
    row("pull", |o| o.pull.is_some(), OfContainer(pull)),
    row("group-add", |o| !o.groups.is_empty(), Pod(PodWide::groups)),
    row("hostname", |o| o.hostname.is_some(), Pod(PodWide::hostname)),
    row("add-host", |o| !o.network.hosts.is_empty(), Pod(PodWide::hosts)),
    row("dns", |_| true, Pod(PodWide::dns)),
    row("sysctl", |o| !o.sysctls.is_empty(), Pod(PodWide::sysctls)),
    row("pid=host, --ipc=host, --network=host", |_| true, Pod(PodWide::namespaces)),
    row("ipc=none", |o| o.ipc == IpcMode::None, Nothing("a pod has no field that turns IPC off")),
    row("platform", |_| true, Pod(PodWide::platform)),
    row("label, --annotation", |_| true, Pod(PodWide::annotations)),
    row("cpuset-cpus", |o| o.resources.cpuset_cpus.is_some(), Nothing(NODES)),
    row("cpuset-mems", |o| o.resources.cpuset_mems.is_some(), Nothing(NODES)),
    row("memory-swap", |o| o.resources.memory_swap.is_some(), Nothing(KUBELET)),
    row("memory-swappiness", |o| o.resources.memory_swappiness.is_some(), Nothing(KUBELET)),
    row("pids-limit", |o| o.resources.pids.is_some(), Nothing(KUBELET)),
    row(
        "ulimit",
        |o| !o.ulimits.is_empty(),
        Nothing("in a cluster, the node's container runtime sets the ulimits"),
    ),
    row("oom-kill-disable", |o| o.resources.oom_kill_disable, Nothing(OOM)),
    row("oom-score-adj", |o| o.resources.oom_score_adj.is_some(), Nothing(OOM)),
    row("blkio-weight", |o| o.resources.blkio_weight.is_some(), Nothing(KUBELET)),
    row(
        "domainname",
        |o| o.domainname.is_some(),
        Nothing("the cluster's DNS determines the domain names of pods"),
    ),
    row(
        "init",
        |o| o.init.is_some(),
        Nothing(
            "the first process of a job container is the hook's agent, and that of a service its own program",
        ),
    ),
    row(
        "stop-signal",
        |o| o.stop_signal.is_some(),
        Nothing("the hook stops all containers of a pod together, by deleting the pod"),
    ),
    row(
        "stop-timeout",
        |o| o.stop_timeout.is_some(),
        Nothing("the hook stops all containers of a pod together, by deleting the pod"),
    ),
    row(
        "network=none",
        |o| o.network.mode == NetworkMode::None,
        Nothing(
            "the containers of a pod share its network; to isolate the pod, use a NetworkPolicy",
        ),
    ),
    row(
        "uts=host",
        |o| o.host_namespaces.contains(&HostNamespace::Uts),
        Nothing("a pod has no field that shares the UTS namespace of the host"),
    ),
    row(
        "cgroupns=host",
        |o| o.host_namespaces.contains(&HostNamespace::Cgroup),
        Nothing("a pod has no field that shares the cgroup namespace of the host"),
    ),
];

const fn row(
    option: &'static str,
    is_asked: fn(&CreateOptions) -> bool,
    meaning: OptionEffect,
) -> OptionRow {
    OptionRow { option, is_asked, meaning }
}

/// Applies the options to a container and its pod. Returns the options that have no effect.
pub fn apply(
    asked: &RequestedContainer<'_>,
    settings: &KubernetesSettings,
    container: &mut Container,
    pod: &mut PodWide,
) -> Result<Vec<IneffectiveOption>, HookError> {
    let mut idle = asked.options.without_effect.clone();
    for OptionRow { option, is_asked, meaning } in &TABLE {
        if !is_asked(&asked.options) {
            continue;
        }
        match meaning {
            OfContainer(change) => {
                change(ContainerChange { options: &asked.options, settings, to: container })?;
            }
            Pod(change) => change(asked, pod)?,
            Nothing(reason) => idle.push(IneffectiveOption { option, reason }),
        }
    }
    Ok(idle)
}

/// Returns the error for an option value that pods do not support.
pub fn unsupported_option(option: String, advice: &str) -> HookError {
    PolicyError(vec![PolicyDenial { option, advice: advice.to_owned() }]).into()
}

/// Limits or requests of a container's resources.
enum ResourceList {
    Limits,
    Requests,
}

fn resource(container: &mut Container, half: &ResourceList, name: &str, quantity: String) {
    let resources = container.resources.get_or_insert_default();
    let list = match half {
        ResourceList::Limits => &mut resources.limits,
        ResourceList::Requests => &mut resources.requests,
    };
    list.get_or_insert_with(BTreeMap::new).insert(name.to_owned(), Quantity(quantity));
}

fn security_context(container: &mut Container) -> &mut SecurityContext {
    container.security_context.get_or_insert_default()
}

fn memory(change: ContainerChange<'_>) -> Result<(), HookError> {
    let bytes = change.options.resources.memory_bytes.unwrap_or_default();
    resource(change.to, &ResourceList::Limits, "memory", bytes.to_string());
    Ok(())
}

fn memory_reservation(change: ContainerChange<'_>) -> Result<(), HookError> {
    let bytes = change.options.resources.memory_reservation_bytes.unwrap_or_default();
    resource(change.to, &ResourceList::Requests, "memory", bytes.to_string());
    Ok(())
}

/// Returns the CPU limit of `--cpus` or `--cpu-quota`, in billionths of a CPU; `None` without one.
fn limit_nanos(options: &CreateOptions) -> Option<u64> {
    let resources = &options.resources;
    let period = resources.cpu_period.unwrap_or(100_000);
    let quota = resources.cpu_quota.and_then(|quota| u64::try_from(quota).ok());
    resources.nano_cpus.or(quota.map(|quota| quota.saturating_mul(1_000_000_000) / period.max(1)))
}

/// Formats a number of CPUs for Kubernetes, rounded up to thousandths.
pub fn cpu_quantity(nanos: u64) -> String {
    let millis = nanos.div_ceil(1_000_000).max(1);
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") }
}

fn cpus(change: ContainerChange<'_>) -> Result<(), HookError> {
    let nanos = limit_nanos(change.options).unwrap_or_default();
    resource(change.to, &ResourceList::Limits, "cpu", cpu_quantity(nanos));
    Ok(())
}

/// Requests CPUs for `--cpu-shares`: Kubernetes derives 1024 shares from each requested CPU.
fn cpu_shares(change: ContainerChange<'_>) -> Result<(), HookError> {
    let shares = change.options.resources.cpu_shares.unwrap_or_default();
    let mut nanos = shares.saturating_mul(1_000_000_000) / 1024;
    if let Some(limit) = limit_nanos(change.options) {
        nanos = nanos.min(limit);
    }
    resource(change.to, &ResourceList::Requests, "cpu", cpu_quantity(nanos));
    Ok(())
}

/// Sets the number of GPUs; `all` means one, since the node's other GPUs are for other pods.
fn gpus(change: ContainerChange<'_>) -> Result<(), HookError> {
    let count = match change.options.gpus {
        Some(GpuOption::Count(count)) => count,
        _ => 1,
    };
    resource(change.to, &ResourceList::Limits, &change.settings.gpu_resource, count.to_string());
    Ok(())
}

/// Parses a numeric user or group id, or `root`. Other names would need the image's files.
pub fn id(option: &str, text: &str) -> Result<i64, HookError> {
    match text {
        "root" => Ok(0),
        _ => text.parse::<u32>().map(i64::from).map_err(|_| {
            let advice = "in a cluster, users and groups must be numeric ids, such as 1000";
            unsupported_option(format!("{option} {text}"), advice)
        }),
    }
}

fn user(change: ContainerChange<'_>) -> Result<(), HookError> {
    let text = change.options.user.as_deref().unwrap_or_default();
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (text, None),
    };
    let context = security_context(change.to);
    if !user.is_empty() {
        context.run_as_user = Some(id("--user", user)?);
    }
    context.run_as_group = group.map(|group| id("--user", group)).transpose()?;
    Ok(())
}

fn read_only(change: ContainerChange<'_>) -> Result<(), HookError> {
    security_context(change.to).read_only_root_filesystem = Some(true);
    Ok(())
}

fn privileged(change: ContainerChange<'_>) -> Result<(), HookError> {
    security_context(change.to).privileged = Some(true);
    Ok(())
}

fn capabilities(change: ContainerChange<'_>) -> Result<(), HookError> {
    let names = |list: &[String]| {
        let bare = list.iter().map(|name| name.strip_prefix("CAP_").unwrap_or(name).to_owned());
        Some(bare.collect::<Vec<_>>()).filter(|names| !names.is_empty())
    };
    let security = &change.options.security;
    let (add, drop) = (names(&security.cap_add), names(&security.cap_drop));
    security_context(change.to).capabilities = Some(Capabilities { add, drop });
    Ok(())
}

fn security(change: ContainerChange<'_>) -> Result<(), HookError> {
    let security = &change.options.security;
    if let Some(no_new_privileges) = security.no_new_privileges {
        security_context(change.to).allow_privilege_escalation = Some(!no_new_privileges);
    }
    if security.seccomp_unconfined {
        let type_ = "Unconfined".to_owned();
        let profile = SeccompProfile { localhost_profile: None, type_ };
        security_context(change.to).seccomp_profile = Some(profile);
    }
    if let Some(profile) = &security.apparmor {
        let (type_, localhost_profile) = match profile.as_str() {
            "unconfined" => ("Unconfined", None),
            "docker-default" | "runtime/default" => ("RuntimeDefault", None),
            name => ("Localhost", Some(name.to_owned())),
        };
        let profile = AppArmorProfile { localhost_profile, type_: type_.to_owned() };
        security_context(change.to).app_armor_profile = Some(profile);
    }
    if security.system_paths_unconfined {
        security_context(change.to).proc_mount = Some("Unmasked".to_owned());
    }
    Ok(())
}

fn pull(change: ContainerChange<'_>) -> Result<(), HookError> {
    let policy = change.options.pull.map(|pull| match pull {
        PullOption::Always => "Always",
        PullOption::Missing => "IfNotPresent",
        PullOption::Never => "Never",
    });
    change.to.image_pull_policy = policy.map(str::to_owned);
    Ok(())
}
