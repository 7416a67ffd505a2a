//! Checks for a rootless user: first outside of namespaces, then inside namespaces like those of jobs.

use std::mem;
use std::path::Path;

use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::checks::user::service::{self, CheckedProcess};
use oci_hooks_engine_cli::checks::user::{ids, inside, namespaces, places};
use oci_hooks_engine_cli::checks::{
    CONTAINERS, HostCheck, hooks, host, registries, report, runtimes, storage,
};
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::settings_file::LoadedSettings;
use oci_hooks_host::privilege::{ForkSide, IdMaps};

use super::{limits, ownership, runner};
use crate::error::HookCommandError;
use crate::settings::HookFileSettings;

pub fn run(
    mut loaded: LoadedSettings<HookFileSettings>,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    let map = IdMaps::of_process()?;
    let mut checks = vec![runner::user(), runner::settings(&loaded)];
    checks.extend(host_checks(&loaded.settings, &map));
    checks.extend(runner::other_runtimes(&loaded.settings));
    // Before entering namespaces, which hide the host's processes.
    checks.extend(runner::checks_for_user(&loaded.settings));
    match namespaces::enter(&map) {
        Ok((ForkSide::Outside(child), pause_process)) => {
            let ended = child.wait(None, |_| ());
            drop(pause_process);
            // No error is expected: the child is waited for only here.
            return Ok(ended.map_or(CliExit::Findings, CliExit::from));
        }
        Ok((ForkSide::Inside(found), pause_process)) => {
            // The outside process ends the pause process.
            mem::forget(pause_process);
            loaded.settings.store.place.privilege = found.privilege;
            checks.push(namespaces::report_namespaces());
            let settings = &loaded.settings;
            checks.extend(inside::checks(settings.host(), &settings.network.uplink));
            checks.extend(runner::test_containers(settings));
        }
        Err(error) => checks.push(namespaces::report_namespace_error(&error, &program_path()?)),
    }
    Ok(report(&checks, CONTAINERS, context)?)
}

/// Checks the host features that containers need, outside of namespaces: inside, files have other owners.
pub fn host_checks(settings: &HookFileSettings, map: &IdMaps) -> Vec<HostCheck> {
    let store = &settings.store;
    let mut checks = vec![host::kernel(None)];
    checks.extend(ids::checks(map));
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::directories(settings.host()));
    checks.extend(places::file_system(store));
    checks.extend(places::check_writable("store", "root", &store.root));
    checks.extend(places::temporary(&store.root));
    checks.extend(places::check_writable("run directory", "run", &store.run));
    checks.extend(places::replaced(&store.run));
    let audit = settings.audit.file.as_deref().and_then(Path::parent);
    checks.extend(audit.map(|dir| storage::permissions("audit log", dir)));
    checks.push(limits::report_missing_limits(settings, false));
    checks.push(hooks::check(&settings.hooks));
    checks.extend(limits::report_root_limits(settings));
    checks.extend(ownership::check_user_rights(&settings.policy));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(services(settings, matches!(map, IdMaps::Ranges(_))));
    checks
}

/// Checks the limits and the confinement of this user's runner services; without one, those of this process.
fn services(settings: &HookFileSettings, needs_ids: bool) -> Vec<HostCheck> {
    let of = |process: CheckedProcess<'_>| {
        let mut checks = vec![service::limits(process)];
        checks.extend(service::confinement(process, &settings.store.run, needs_ids));
        checks
    };
    let own = runner::own_listeners();
    if own.is_empty() {
        let name = "this session, as no runner of this user is running";
        return of(CheckedProcess { pid: std::process::id(), name });
    }
    own.iter().flat_map(|(pid, name)| of(CheckedProcess { pid: *pid, name })).collect()
}
