//! `container-hook doctor`.

mod directories;
mod limits;
mod names;
mod ownership;
mod runner;

use std::path::Path;

use clap::Args;
use oci_hooks::program::checks::{
    CONTAINERS, host, network, registries, report, runtimes, storage,
};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;

use crate::engine;
use crate::environment;
use crate::error::Error;
use crate::pods;
use crate::settings::{Kind, Settings};

pub(crate) use runner::settings;

/// Check this machine for problems, and print a fix for each
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as root, as the hook runs; in a cluster in the pod of a runner, where it asks for each permission.
Exit status is 0 if containers will run as jobs need them, and 1 otherwise.")]
pub(crate) struct DoctorArgs {}

pub(crate) fn run(_: &DoctorArgs, context: &mut Context) -> Result<Exit, Error> {
    let loaded = context.settings::<Settings>()?;
    let settings = &loaded.settings;
    if environment::backend(settings) == Kind::Kubernetes {
        return pods::doctor(&loaded, context);
    }
    let mut checks = vec![runner::user(), runner::settings(&loaded)];
    checks.push(host::kernel(Some(ownership::IDMAPPED_OVERLAY)));
    checks.extend([host::cgroups(), host::cgroup_controllers(), ownership::user_namespaces()]);
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::checks(settings.host()));
    checks.extend(ownership::idmapped_mounts(&settings.store));
    let audit = settings.audit.file.as_deref().and_then(Path::parent);
    checks.extend(audit.map(|dir| storage::permissions("audit log", dir)));
    checks.push(limits::none(settings));
    let limits = &settings.limits;
    checks.extend(limits.disk.or(limits.volumes).map(|_| storage::limited_disks()));
    checks.extend(ownership::privileged(&settings.policy));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(network::checks(&engine::network(settings)));
    if settings.network.dns.is_empty() && !settings.network.host_access {
        checks.extend(network::resolver());
    }
    checks.extend(runner::checks(settings));
    Ok(report(&checks, CONTAINERS, context)?)
}
