//! Checks a host whose runners run as root.

use std::path::Path;

use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::checks::{
    CONTAINERS, HostCheck, hooks, host, network, owners, registries, report, runtimes, storage,
};
use oci_hooks_engine_cli::settings_file::LoadedSettings;

use super::{limits, ownership, runner};
use crate::engine;
use crate::error::HookCommandError;
use crate::settings::HookFileSettings;

pub fn run(
    loaded: &LoadedSettings<HookFileSettings>,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    let mut checks = vec![runner::user(), runner::settings(loaded)];
    checks.extend(host_checks(&loaded.settings));
    checks.extend(runner::other_runtimes(&loaded.settings));
    checks.extend(runner::test_containers(&loaded.settings));
    checks.extend(runner::checks_for_root(&loaded.settings));
    Ok(report(&checks, CONTAINERS, context)?)
}

/// Checks the host features that containers need.
pub fn host_checks(settings: &HookFileSettings) -> Vec<HostCheck> {
    let mut checks = vec![host::kernel(Some(owners::IDMAPPED_OVERLAY))];
    checks.extend([host::cgroups(), host::cgroup_controllers()]);
    checks.push(owners::user_namespaces(
        "without one, files of containers in the runner's directories do not belong to its user",
    ));
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::checks(settings.host()));
    checks.push(owners::idmapped_mounts(
        &settings.store,
        "the runner's directories cannot be mounted into containers: update the kernel, put the store \
         and the work directories on another file system, or set user-namespace = \"host\" under \
         [security] and ownership = \"keep\" under [mounts]",
    ));
    let audit = settings.audit.file.as_deref().and_then(Path::parent);
    checks.extend(audit.map(|dir| storage::permissions("audit log", dir)));
    checks.push(limits::report_missing_limits(settings, true));
    checks.push(hooks::check(&settings.hooks));
    let limits = &settings.limits;
    checks.extend(limits.disk.or(limits.volumes).map(|_| storage::limited_disks()));
    checks.extend(ownership::privileged(&settings.policy));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(network::checks(&engine::network(settings)));
    if settings.network.dns.is_empty() && !settings.network.host_access {
        checks.extend(network::resolver());
    }
    checks
}
