//! What is looked at for a user who is not root: outside of namespaces, and then in some like those of
//! instances.

use std::mem;

use oci_hooks::program::checks::user::service::{self, Process};
use oci_hooks::program::checks::user::{ids, inside, namespaces, places};
use oci_hooks::program::checks::{CONTAINERS, Check, host, registries, report, runtimes, storage};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;
use oci_hooks::program::settings_file::Loaded;
use oci_hooks::sys::privilege::{Map, Side};

use super::{certificates, mounts, nesting, settings_file};
use crate::error::Error;
use crate::settings::Settings;

pub fn run(mut loaded: Loaded<Settings>, context: &mut Context) -> Result<Exit, Error> {
    let map = Map::of_process()?;
    let mut checks = outside(&loaded, &map);
    match namespaces::enter(&map) {
        Ok((Side::Outside(attendant), holder)) => {
            let ended = attendant.wait(None, |_| ());
            drop(holder);
            // A child is waited for once.
            return Ok(ended.map_or(Exit::Findings, Exit::from));
        }
        Ok((Side::Inside(found), holder)) => {
            // The other one ends it.
            mem::forget(holder);
            loaded.settings.store.place.privilege = found.privilege;
            checks.push(namespaces::made());
            let settings = &loaded.settings;
            checks.extend(inside::checks(settings.host(), &settings.network.uplink));
        }
        Err(error) => checks.push(namespaces::not_made(&error, &this_program()?)),
    }
    Ok(report(&checks, CONTAINERS, context)?)
}

/// Looks at what can be seen as this user: inside, the host's files have other owners.
fn outside(loaded: &Loaded<Settings>, map: &Map) -> Vec<Check> {
    let settings = &loaded.settings;
    let store = &settings.store;
    let uid = rustix::process::geteuid().as_raw();
    let user = Check::ok("user", format!("{uid}, whose instances need no root"));
    let mut checks = vec![user, settings_file(loaded), host::kernel(None)];
    checks.extend(ids::checks(map));
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::directories(settings.host()));
    checks.extend(places::file_system(store));
    checks.extend(places::writable("store", "root", &store.root));
    checks.extend(places::writable("run directory", "run", &store.run));
    checks.extend(places::replaced(&store.run));
    checks.extend(disks(settings));
    let name = "this session, which the service of GARM need not be like";
    checks.push(service::limits(Process { pid: std::process::id(), name }));
    let process = Process { pid: std::process::id(), name };
    checks.extend(service::confinement(process, &store.run, matches!(map, Map::Ranges(_))));
    checks.extend(certificates(settings));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(mounts(settings));
    checks.extend(nesting(settings));
    checks
}

/// Names the flavors that there can be no instances of.
fn disks(settings: &Settings) -> Option<Check> {
    let limited = settings.flavors.iter().filter(|(_, flavor)| flavor.disk.is_some());
    let names: Vec<_> = limited.map(|(name, _)| name.as_str()).collect();
    let found = format!(
        "limited in flavors {}: loop devices, which that takes, are root's",
        names.join(", ")
    );
    let hint = "take `disk` out of these flavors, or run the provider as root";
    (!names.is_empty()).then(|| Check::fail("disks", found, hint))
}
