//! What is looked at for a user who is not root: outside of namespaces, and then in some like those of jobs.

use std::mem;
use std::path::Path;

use oci_hooks::program::checks::user::service::{self, Process};
use oci_hooks::program::checks::user::{ids, inside, namespaces, places};
use oci_hooks::program::checks::{CONTAINERS, Check, host, registries, report, runtimes, storage};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;
use oci_hooks::program::settings_file::Loaded;
use oci_hooks::sys::privilege::{Map, Side};

use super::{limits, ownership, runner};
use crate::error::Error;
use crate::settings::Settings;

pub fn run(mut loaded: Loaded<Settings>, context: &mut Context) -> Result<Exit, Error> {
    let map = Map::of_process()?;
    let mut checks = vec![runner::user(), runner::settings(&loaded)];
    checks.extend(host_checks(&loaded.settings, &map));
    // Inside there are no processes of the host.
    checks.extend(runner::checks_for_user(&loaded.settings));
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

/// Checks what containers need of the host, outside of namespaces: inside, its files have other owners.
pub fn host_checks(settings: &Settings, map: &Map) -> Vec<Check> {
    let store = &settings.store;
    let mut checks = vec![host::kernel(None)];
    checks.extend(ids::checks(map));
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::directories(settings.host()));
    checks.extend(places::file_system(store));
    checks.extend(places::writable("store", "root", &store.root));
    checks.extend(places::writable("run directory", "run", &store.run));
    checks.extend(places::replaced(&store.run));
    let audit = settings.audit.file.as_deref().and_then(Path::parent);
    checks.extend(audit.map(|dir| storage::permissions("audit log", dir)));
    checks.push(limits::none(settings, false));
    checks.extend(limits::of_root(settings));
    checks.extend(ownership::whole_user(&settings.policy));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(services(settings, matches!(map, Map::Ranges(_))));
    checks
}

/// Looks at what the services of this user's runners were given; without one, at what this process was.
fn services(settings: &Settings, needs_ids: bool) -> Vec<Check> {
    let of = |process: Process<'_>| {
        let mut checks = vec![service::limits(process)];
        checks.extend(service::confinement(process, &settings.store.run, needs_ids));
        checks
    };
    let own = runner::own_listeners();
    if own.is_empty() {
        let name = "this session, as no runner of this user is running";
        return of(Process { pid: std::process::id(), name });
    }
    own.iter().flat_map(|(pid, name)| of(Process { pid: *pid, name })).collect()
}
