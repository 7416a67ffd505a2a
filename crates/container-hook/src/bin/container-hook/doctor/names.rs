//! Checks the names by which services are reached.

use container_hook_job::RunnerFiles;
use container_hook_job::service_names::{DIAG, directory_of};
use oci_hooks_engine_cli::checks::HostCheck;
use oci_hooks_files::error::chain;

use crate::settings::HookFileSettings;

const NAME: &str = "service names";
const OTHERS: &str = "services are reached by --network-alias, --name and --hostname of their `options:` \
                      and by the names of their images";

/// Checks access to the runner's logs, which contain the names under `services:`.
pub fn check(settings: &HookFileSettings, pid: u32) -> HostCheck {
    if !settings.network.names_from_runner_log {
        return HostCheck::warn(
            NAME,
            format!("names-from-runner-log is off: {OTHERS}"),
            "set names-from-runner-log = true under [network]",
        );
    }
    let Some(dir) = directory_of(pid) else {
        let hint = "run doctor as root";
        return HostCheck::warn(
            NAME,
            format!("cannot look up the program of the runner (process {pid})"),
            hint,
        );
    };
    let diag = dir.join(DIAG);
    match RunnerFiles::new(&dir).and_then(|files| files.directory(&diag)) {
        Ok(_) => HostCheck::ok(
            NAME,
            format!("names under `services:` come from {}; {OTHERS} too", diag.display()),
        ),
        Err(error) => HostCheck::warn(
            NAME,
            format!("names under `services:` are unknown: {}; {OTHERS}", chain(&error)),
            "the runner's logs must be in _diag of its directory, and _diag must not be a symbolic link",
        ),
    }
}
