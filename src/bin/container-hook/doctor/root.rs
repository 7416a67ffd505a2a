//! The checks of a host whose runners are root.

use std::path::Path;

use oci_hooks::program::checks::{
    CONTAINERS, Check, host, network, owners, registries, report, runtimes, storage,
};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::settings_file::Loaded;

use super::{limits, ownership, runner};
use crate::engine;
use crate::error::Error;
use crate::settings::Settings;

pub fn run(loaded: &Loaded<Settings>, context: &mut Context) -> Result<Exit, Error> {
    let mut checks = vec![runner::user(), runner::settings(loaded)];
    checks.extend(host_checks(&loaded.settings));
    checks.extend(runner::checks_for_root(&loaded.settings));
    Ok(report(&checks, CONTAINERS, context)?)
}

/// Checks what containers need of the host.
pub fn host_checks(settings: &Settings) -> Vec<Check> {
    let mut checks = vec![host::kernel(Some(owners::IDMAPPED_OVERLAY))];
    checks.extend([host::cgroups(), host::cgroup_controllers()]);
    checks.push(owners::user_namespaces(
        "files of containers in the runner's directories cannot be given to its user without one",
    ));
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::checks(settings.host()));
    checks.push(owners::idmapped_mounts(
        &settings.store,
        "containers cannot be given the runner's directories: update the kernel, put the store \
         and the work directories on another file system, or set user-namespace = \"host\" under \
         [security] and ownership = \"keep\" under [mounts]",
    ));
    let audit = settings.audit.file.as_deref().and_then(Path::parent);
    checks.extend(audit.map(|dir| storage::permissions("audit log", dir)));
    checks.push(limits::none(settings, true));
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
