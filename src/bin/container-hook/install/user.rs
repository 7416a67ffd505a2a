//! What an ordinary user's runner would get, tried before a script is written for it.

use oci_hooks::program::checks::Check;
use oci_hooks::program::checks::user::service::{self, Process};
use oci_hooks::program::checks::user::{ids, namespaces};
use oci_hooks::program::context::Context;
use oci_hooks::program::programs::this_program;
use oci_hooks::sys::privilege::{Holder, Map};

use crate::doctor::own_listeners;
use crate::error::Error;

/// Makes namespaces as a job has them, and takes them away. Returns how many user ids there are in them.
///
/// # Errors
///
/// Fails with the first thing without which no container runs; what only some need is a warning.
pub(super) fn try_out(context: &Context) -> Result<u32, Error> {
    let map = Map::of_process()?;
    let mut checks = ids::checks(&map);
    checks.push(match Holder::make(&map, None, None) {
        Ok(holder) => {
            drop(holder);
            namespaces::made()
        }
        Err(error) => namespaces::not_made(&error, &this_program()?),
    });
    let services = own_listeners();
    checks.extend(services.iter().map(|(pid, name)| service::limits(Process { pid: *pid, name })));
    first_failure(&checks)?;
    for check in checks.iter().filter(|check| check.is_warning()) {
        warn(check, context);
    }
    Ok(map.privilege().ids().map_or(u32::MAX, |ids| ids.uids))
}

/// Returns an error if something is missing without which no container runs.
pub(super) fn first_failure(checks: &[Check]) -> Result<(), Error> {
    checks.iter().find(|check| check.is_failure()).map_or(Ok(()), |check| {
        Err(Error::CannotRun { found: check.found().to_owned(), hint: check.hint().to_owned() })
    })
}

fn warn(check: &Check, context: &Context) {
    context.warning(check.found());
    for line in check.hint().lines() {
        context.hint(Some(line));
    }
}
