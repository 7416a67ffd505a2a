//! Uplink of rootless jobs: pasta or slirp4netns.

use oci_hooks_engine::network::{
    ATTEMPTS, NetworkError, TUN, Uplink, UplinkChoice, UplinkError, UplinkTestResult, test_uplink,
};
use oci_hooks_files::error::chain;

use super::super::super::sections::StoreSection;
use super::super::HostCheck;
use super::super::storage::{TrialError, run_trial};

const NAME: &str = "uplink";

/// Checks the uplink: starts the program of the settings for the network namespace of this thread, and connects to the
/// host through it.
pub fn check(choice: &UplinkChoice, store: &StoreSection) -> HostCheck {
    let tried = run_trial(store, |trial| {
        test_uplink(choice, &trial.join("uplink")).map_err(|error| Box::new(error) as TrialError)
    });
    match tried {
        Ok(test) => report_test(&test),
        Err(error) => match error.downcast_ref() {
            // The error's own message contains a hint for logs of jobs.
            Some(NetworkError::Uplink(UplinkError::Tun { program, source })) => HostCheck::fail(
                NAME,
                format!("cannot open {TUN}, which {program} needs: {source}"),
                TUN_HINT,
            ),
            Some(NetworkError::Uplink(UplinkError::NoProgram)) => {
                HostCheck::fail(NAME, "neither pasta nor slirp4netns is installed", INSTALL)
            }
            Some(NetworkError::Uplink(UplinkError::Missing { path, .. })) => {
                HostCheck::fail(NAME, format!("{} does not exist", path.display()), INSTALL)
            }
            _ => HostCheck::fail(NAME, chain(&*error), OTHER),
        },
    }
}

/// Hint for an uplink program that does not work.
const OTHER: &str = "name the other program as `uplink` under [network]: pasta or slirp4netns";

/// Hint for a missing uplink program.
const INSTALL: &str = "apt install slirp4netns, dnf install passt";

/// Hint for an inaccessible `/dev/net/tun`.
const TUN_HINT: &str = "sudo modprobe tun\n\
     sudo chmod 0666 /dev/net/tun\n\
     If this runs in a container, start that with --device /dev/net/tun";

fn report_test(test: &UplinkTestResult) -> HostCheck {
    match test {
        UplinkTestResult::None => {
            HostCheck::ok(NAME, "none, by the settings: jobs cannot reach anything outside")
        }
        UplinkTestResult::NoRoute(uplink) => HostCheck::warn(
            NAME,
            format!("{}; not tried: this host has no default route", describe_uplink(uplink)),
            "ip route add default via ADDRESS",
        ),
        UplinkTestResult::Answered(uplink, ATTEMPTS) => HostCheck::ok(
            NAME,
            format!("{} works, also for half-closed connections", describe_uplink(uplink)),
        ),
        UplinkTestResult::Answered(uplink, answered) => HostCheck::warn(
            NAME,
            format!(
                "{} works, but drops connections after the client half-closes ({answered} of {} were \
                 answered): nc and some package managers then wait forever",
                describe_uplink(uplink),
                answered + 1
            ),
            "apt install slirp4netns, or install passt of October 2026 or newer",
        ),
    }
}

fn describe_uplink(uplink: &Uplink) -> String {
    let version =
        uplink.version.as_ref().map_or("of unknown version".to_owned(), ToString::to_string);
    format!("{} {version}", uplink.program.display())
}
