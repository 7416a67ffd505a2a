//! Checks for a rootless user: outside of namespaces, and inside namespaces like those of instances.

use std::mem;

use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::checks::user::service::{self, CheckedProcess};
use oci_hooks_engine_cli::checks::user::{ids, inside, namespaces, places};
use oci_hooks_engine_cli::checks::{
    CONTAINERS, HostCheck, hooks, host, registries, report, runtimes, storage,
};
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::sections::UserNamespace;
use oci_hooks_engine_cli::settings_file::LoadedSettings;
use oci_hooks_host::privilege::{ForkSide, IdMaps};

use super::{certificates, mounts, nesting, settings_file};
use crate::error::AdminError;
use crate::settings::GarmFileSettings;

pub fn run(
    mut loaded: LoadedSettings<GarmFileSettings>,
    context: &mut CliContext,
) -> Result<CliExit, AdminError> {
    let map = IdMaps::of_process()?;
    let mut checks = check_as_user(&loaded, &map);
    match namespaces::enter(&map) {
        Ok((ForkSide::Outside(child), pause_process)) => {
            let ended = child.wait(None, |_| ());
            drop(pause_process);
            // Waiting fails only if the child has already been reaped.
            return Ok(ended.map_or(CliExit::Findings, CliExit::from));
        }
        Ok((ForkSide::Inside(found), pause_process)) => {
            // The parent stops the pause process.
            mem::forget(pause_process);
            loaded.settings.store.place.privilege = found.privilege;
            checks.push(namespaces::report_namespaces());
            let settings = &loaded.settings;
            checks.extend(inside::checks(settings.host(), &settings.network.uplink));
        }
        Err(error) => checks.push(namespaces::report_namespace_error(&error, &program_path()?)),
    }
    Ok(report(&checks, CONTAINERS, context)?)
}

/// Runs the checks that need the user's view: inside the namespaces, the host's files have other owners.
fn check_as_user(loaded: &LoadedSettings<GarmFileSettings>, map: &IdMaps) -> Vec<HostCheck> {
    let settings = &loaded.settings;
    let store = &settings.store;
    let uid = rustix::process::geteuid().as_raw();
    let user = HostCheck::ok("user", format!("{uid}: instances are created without root"));
    let mut checks = vec![user, settings_file(loaded), host::kernel(None)];
    checks.extend(ids::checks(map));
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::directories(settings.host()));
    checks.extend(places::file_system(store));
    checks.extend(places::check_writable("store", "root", &store.root));
    checks.extend(places::temporary(&store.root));
    checks.extend(places::check_writable("run directory", "run", &store.run));
    checks.extend(places::replaced(&store.run));
    checks.push(hooks::check(&settings.hooks));
    checks.extend(private_namespaces(settings));
    checks.extend(disks(settings));
    let name = "this session (GARM's service may differ)";
    let process = CheckedProcess { pid: std::process::id(), name };
    checks.push(service::limits(process));
    checks.extend(service::confinement(process, &store.run, matches!(map, IdMaps::Ranges(_))));
    checks.extend(certificates(settings));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(mounts(settings));
    checks.extend(nesting(settings));
    checks
}

/// Reports private user namespaces, which need root: without it, no instance can be created.
fn private_namespaces(settings: &GarmFileSettings) -> Option<HostCheck> {
    let found = "user-namespace = \"private\" under [security]: only root can give each instance ids of its own";
    let hint = "remove user-namespace from [security], or run the provider as root";
    let is_private = settings.security.user_namespace == UserNamespace::Private;
    is_private.then(|| HostCheck::fail("user namespace", found, hint))
}

/// Reports flavors with a disk limit, which needs root: without it, their instances cannot be created.
fn disks(settings: &GarmFileSettings) -> Option<HostCheck> {
    let limited = settings.flavors.iter().filter(|(_, flavor)| flavor.disk.is_some());
    let names: Vec<_> = limited.map(|(name, _)| name.as_str()).collect();
    let found = format!(
        "limited in flavors {}: needs loop devices, available only to root",
        names.join(", ")
    );
    let hint = "remove `disk` from these flavors, or run the provider as root";
    (!names.is_empty()).then(|| HostCheck::fail("disks", found, hint))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use oci_hooks_host::privilege::Privilege;

    use super::*;

    #[test]
    fn private_namespaces_without_root_fail_only_their_own_check() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        fs::write(&path, "-----BEGIN CERTIFICATE-----\n").unwrap();
        let mut settings = GarmFileSettings::default();
        settings.boot.ca = Some(path);
        settings.security.user_namespace = UserNamespace::Private;
        settings.store.place.privilege = Privilege::Single;
        assert!(private_namespaces(&settings).unwrap().is_failure());
        assert!(!certificates(&settings).unwrap().is_failure());
    }
}
