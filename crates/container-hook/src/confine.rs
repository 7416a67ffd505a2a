//! Limits and privileges from the workflow's `options:` and the admin's settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use container_hook_job::HookError;
use container_hook_job::options::{CreateOptions, HostNamespace, IpcMode, SwapLimit};
use oci_hooks_engine::bundle::{self, HostDevice, NamespaceSource, ProcessRlimit, Seccomp};
use oci_hooks_engine::container::allow_nesting;
use oci_hooks_host::cgroup;
use oci_hooks_host::host_file::HostFile;

use super::backend::EngineBackend;
use super::settings::NewPrivileges;

/// Sets the resource limits of a container.
pub fn limit(
    backend: &EngineBackend<'_>,
    all: &CreateOptions,
    options: &mut bundle::BundleOptions,
) {
    let asked = &all.resources;
    let own = &mut options.resources;
    let max = &backend.context.settings.policy.max;
    let default = backend.settings.limits.memory.map(|size| size.0);
    let default =
        default.map(|bytes| max.memory_bytes().map_or(bytes, |(most, _)| bytes.min(most)));
    own.memory_bytes = asked.memory_bytes.or(default);
    own.memory_reservation_bytes = asked.memory_reservation_bytes;
    own.memory_swap_bytes = asked.memory_swap.map(|swap| match swap {
        SwapLimit::Unlimited => -1,
        SwapLimit::Bytes(bytes) => i64::try_from(bytes).unwrap_or(-1),
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
    if let Some(most) = backend.settings.limits.open_files {
        limits.entry("nofile").or_insert((Some(most), Some(most)));
    }
    let maximums = max.ulimits.iter().filter(|(name, _)| !limits.contains_key(name.as_str()));
    let maximums =
        maximums.filter_map(|(name, most)| ProcessRlimit::with_maximum(name.as_str(), *most));
    options.rlimits = maximums.collect();
    let limits = limits.into_iter().filter_map(|(name, (soft, hard))| {
        let most = max.ulimits.iter().find(|(known, _)| known.as_str() == name);
        let at_most = |limit: Option<u64>| match most {
            Some((_, most)) => Some(limit.map_or(*most, |limit| limit.min(*most))),
            None => limit,
        };
        ProcessRlimit::new(name, at_most(soft), at_most(hard))
    });
    options.rlimits.extend(limits);
}

/// Returns the limit of processes of a container; -1 for no limit.
pub fn pids_limit(backend: &EngineBackend<'_>, all: &CreateOptions) -> i64 {
    let limit = match all.resources.pids {
        None => backend.settings.limits.pids.unwrap_or_else(|| share_of_processes(backend)),
        Some(0) => -1,
        Some(pids) => i64::try_from(pids).unwrap_or(i64::MAX),
    };
    let most = backend.context.settings.policy.max.pids();
    let most = most.map(|(most, _)| i64::try_from(most).unwrap_or(i64::MAX));
    most.map_or(limit, |most| if limit > 0 { limit.min(most) } else { most })
}

/// Returns a container's share of the host's processes, which are divided among all jobs.
fn share_of_processes(backend: &EngineBackend<'_>) -> i64 {
    let jobs = backend.jobs().all_jobs().map_or(1, |jobs| jobs.known.len() + jobs.unreadable.len());
    i64::try_from(cgroup::process_limit(jobs)).unwrap_or(i64::MAX)
}

/// Sets the privileges, namespaces and device rules of a container.
pub fn confine(
    backend: &EngineBackend<'_>,
    all: &CreateOptions,
    options: &mut bundle::BundleOptions,
) {
    let asked = &all.security;
    let own = &mut options.security;
    own.privileged = asked.privileged;
    own.restricted = backend.settings.restricted && !asked.privileged;
    // Changed later for containers that turn out to have their own user namespace.
    let denied = backend.settings.new_privileges != NewPrivileges::Allowed && !asked.privileged;
    own.no_new_privileges = asked.no_new_privileges.unwrap_or(denied);
    own.cap_add.clone_from(&asked.cap_add);
    own.cap_drop.clone_from(&asked.cap_drop);
    if asked.seccomp_unconfined {
        own.seccomp = Seccomp::Unconfined;
    }
    own.unmask = asked.system_paths_unconfined;
    own.apparmor_profile.clone_from(&asked.apparmor);

    let host = |namespace| {
        if all.host_namespaces.contains(&namespace) {
            NamespaceSource::Host
        } else {
            NamespaceSource::Private
        }
    };
    options.namespaces.pid = host(HostNamespace::Pid);
    options.namespaces.ipc = host(HostNamespace::Ipc);
    options.namespaces.uts = host(HostNamespace::Uts);
    options.namespaces.cgroup = host(HostNamespace::Cgroup);
    if options.namespaces.uts == NamespaceSource::Host {
        options.domainname = None;
    }
    match all.ipc {
        IpcMode::Private => {}
        IpcMode::Large => {
            let host = || bundle::host_shm_bytes();
            options.shm_size_bytes = options.shm_size_bytes.or_else(host);
        }
        IpcMode::None => options.shm_size_bytes = Some(0),
    }
    options.device_rules.extend(all.device_rules.iter().cloned());
}

/// Opens the devices that a container is given, if the policy allows them.
pub fn devices(
    backend: &EngineBackend<'_>,
    all: &CreateOptions,
) -> Result<Vec<HostDevice>, HookError> {
    let policy = &backend.context.settings.policy;
    let asked = all.devices.iter().map(|device| (device, policy.open_device(&device.host)));
    // The policy itself lists these devices.
    let gpus = all.gpu_devices.iter().map(|device| (device, HostFile::open_trusted(&device.host)));
    let opened = asked.chain(gpus).map(|(device, host)| {
        let container = PathBuf::from(&device.container);
        Ok(HostDevice { host: host?, container, access: device.access.clone() })
    });
    opened.collect()
}

/// Returns the settings table that denies nested containers; none if they are allowed.
pub fn nesting_denied_by(backend: &EngineBackend<'_>) -> Option<String> {
    let policy = &backend.context.settings.policy;
    (!policy.nesting).then(|| policy.section("policy"))
}

/// Lets a container run nested containers, if the policy allows it and root of the container is not root on
/// the host (`is_apart`).
///
/// The admin decides, because kernel code that root of a user namespace can reach is less tested than other
/// code.
pub fn nest(
    backend: &EngineBackend<'_>,
    title: &str,
    is_apart: bool,
    options: &mut bundle::BundleOptions,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    let security = &options.security;
    if !policy.nesting || security.privileged || security.restricted {
        return Ok(());
    }
    if !is_apart {
        backend.context.log.warning(&format!(
            "{title}: `nesting` under {} has no effect: root in this container is root on this machine",
            policy.section("policy")
        ));
        return Ok(());
    }
    Ok(allow_nesting(options)?)
}
