//! Whether services are reached by the names that workflows give them.

use oci_hooks::container_hook::RunnerFiles;
use oci_hooks::container_hook::service_names::{DIAG, directory_of};
use oci_hooks::program::checks::Check;
use oci_hooks::sys::error::chain;

use crate::settings::Settings;

const NAME: &str = "service names";
const OTHERS: &str = "services are reached by --network-alias, --name and --hostname of their `options:` \
                      and by the names of their images";

/// Looks for the log of a runner's worker.
pub fn check(settings: &Settings, pid: u32) -> Check {
    if !settings.network.names_from_runner_log {
        return Check::warn(
            NAME,
            format!("names-from-runner-log is off: {OTHERS}"),
            "set names-from-runner-log = true under [network]",
        );
    }
    let Some(dir) = directory_of(pid) else {
        let hint = "run doctor as root";
        return Check::warn(NAME, format!("the program of process {pid} cannot be seen"), hint);
    };
    let diag = dir.join(DIAG);
    match RunnerFiles::new(&dir).and_then(|files| files.directory(&diag)) {
        Ok(_) => Check::ok(
            NAME,
            format!("those under `services:`, from {}; {OTHERS} too", diag.display()),
        ),
        Err(error) => Check::warn(
            NAME,
            format!("those under `services:` are not known: {}; {OTHERS}", chain(&error)),
            "let the runner keep its logs in its directory, without symbolic links on the way",
        ),
    }
}
