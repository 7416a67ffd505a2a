//! Limits and privileges, as `options:` of the workflow and the admin's settings have them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::backend::EngineBackend;
use crate::bundle::{self, Access, Device, DeviceRule, Namespace, Rlimit, Seccomp};
use crate::container_hook::error::HookError;
use crate::container_hook::options::{CreateOptions, Ipc, Namespace as HostNamespace, Swap};
use crate::sys::cgroup;
use crate::sys::host_file::HostFile;

/// Limits what a container may use.
pub(super) fn limit(
    backend: &EngineBackend<'_>,
    all: &CreateOptions,
    options: &mut bundle::Options,
) {
    let asked = &all.resources;
    let own = &mut options.resources;
    own.memory_bytes = asked.memory_bytes.or(backend.settings.memory_bytes);
    own.memory_reservation_bytes = asked.memory_reservation_bytes;
    own.memory_swap_bytes = asked.memory_swap.map(|swap| match swap {
        Swap::Unlimited => -1,
        Swap::Bytes(bytes) => i64::try_from(bytes).unwrap_or(-1),
    });
    own.memory_swappiness = asked.memory_swappiness;
    own.oom_kill_disable = asked.oom_kill_disable;
    own.nano_cpus = asked.nano_cpus;
    own.cpu_shares = asked.cpu_shares;
    own.cpu_period = asked.cpu_period;
    own.cpu_quota = asked.cpu_quota;
    own.cpuset_cpus.clone_from(&asked.cpuset_cpus);
    own.cpuset_mems.clone_from(&asked.cpuset_mems);
    own.blkio_weight = asked.blkio_weight;
    let limit = |value: u64| (value != u64::MAX).then_some(value);
    let asked = all.ulimits.iter();
    let mut limits: BTreeMap<_, _> =
        asked.map(|ulimit| (ulimit.name, (limit(ulimit.soft), limit(ulimit.hard)))).collect();
    if let Some(most) = backend.settings.open_files {
        // Nobody gets more by asking.
        let (soft, hard) = limits.entry("nofile").or_default();
        for limit in [soft, hard] {
            *limit = Some(limit.map_or(most, |asked| asked.min(most)));
        }
    }
    let limits = limits.into_iter();
    options.rlimits =
        limits.filter_map(|(name, (soft, hard))| Rlimit::new(name, soft, hard)).collect();
}

/// Returns how many processes a container may have; -1 for any.
pub(super) fn pids_limit(backend: &EngineBackend<'_>, all: &CreateOptions) -> Option<i64> {
    match all.resources.pids {
        None => Some(backend.settings.pids_limit.unwrap_or_else(|| share_of_processes(backend))),
        Some(0) => Some(-1),
        Some(pids) => i64::try_from(pids).ok(),
    }
}

/// Returns how many processes a container has of those of the host, which all jobs share.
fn share_of_processes(backend: &EngineBackend<'_>) -> i64 {
    let jobs = backend.jobs().all().map_or(1, |jobs| jobs.known.len() + jobs.unreadable.len());
    i64::try_from(cgroup::share_of_processes(jobs)).unwrap_or(i64::MAX)
}

/// Takes privileges away from a container, or gives them to it.
pub(super) fn confine(
    backend: &EngineBackend<'_>,
    all: &CreateOptions,
    options: &mut bundle::Options,
) -> Result<(), HookError> {
    let asked = &all.security;
    let own = &mut options.security;
    own.privileged = asked.privileged;
    own.restricted = backend.settings.restricted && !asked.privileged;
    own.no_new_privileges = asked
        .no_new_privileges
        .unwrap_or(!backend.settings.allow_new_privileges && !asked.privileged);
    own.cap_add.clone_from(&asked.cap_add);
    own.cap_drop.clone_from(&asked.cap_drop);
    if asked.seccomp_unconfined {
        own.seccomp = Seccomp::Unconfined;
    }
    own.unmask = asked.system_paths_unconfined;
    own.apparmor_profile.clone_from(&asked.apparmor);

    let host = |namespace| {
        if all.host_namespaces.contains(&namespace) { Namespace::Host } else { Namespace::Private }
    };
    options.namespaces.pid = host(HostNamespace::Pid);
    options.namespaces.ipc = host(HostNamespace::Ipc);
    options.namespaces.uts = host(HostNamespace::Uts);
    options.namespaces.cgroup = host(HostNamespace::Cgroup);
    if options.namespaces.uts == Namespace::Host {
        options.domainname = None;
    }
    if all.ipc == Ipc::None {
        options.shm_size_bytes = Some(0);
    }
    for rule in &all.device_rules {
        options.device_rules.push(DeviceRule {
            kind: rule.kind,
            major: rule.major,
            minor: rule.minor,
            access: access(&rule.access)?,
        });
    }
    Ok(())
}

/// Opens the devices that a container is given, if the policy allows them.
pub(super) fn devices(
    backend: &EngineBackend<'_>,
    all: &CreateOptions,
) -> Result<Vec<Device>, HookError> {
    let policy = &backend.context.settings.policy;
    let asked = all.devices.iter().map(|device| (device, policy.open_device(&device.host)));
    // The administrator's own list.
    let gpus = all.gpu_devices.iter().map(|device| (device, HostFile::open_trusted(&device.host)));
    let opened = asked.chain(gpus).map(|(device, host)| {
        let container = PathBuf::from(&device.container);
        Ok(Device { host: host?, container, access: access(&device.access)? })
    });
    opened.collect()
}

fn access(text: &str) -> Result<Access, HookError> {
    Ok(text
        .parse::<Access>()
        .map_err(bundle::BundleError::from)
        .map_err(crate::container::ContainerError::from)?)
}
