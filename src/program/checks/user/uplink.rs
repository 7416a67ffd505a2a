//! The way of jobs to the world.

use super::super::super::sections::Store;
use super::super::Check;
use super::super::storage::{TrialError, in_trial};
use crate::network::{ATTEMPTS, NetworkError, UplinkTrial, try_uplink};
use crate::sys::error::chain;
use crate::sys::uplink::{TUN, Uplink, UplinkChoice, UplinkError};

const NAME: &str = "uplink";

/// Has the program of the settings lead out of the namespaces of the calling thread, and asks the host by it.
pub fn check(choice: &UplinkChoice, store: &Store) -> Check {
    let tried = in_trial(store, |trial| {
        try_uplink(choice, &trial.join("uplink")).map_err(|error| Box::new(error) as TrialError)
    });
    match tried {
        Ok(trial) => found(&trial),
        Err(error) => match error.downcast_ref() {
            // Its own message has what to do in it, for the logs of jobs.
            Some(NetworkError::Uplink(UplinkError::Tun { program, source })) => Check::fail(
                NAME,
                format!("cannot open {TUN}, which {program} needs: {source}"),
                TUN_HINT,
            ),
            Some(NetworkError::Uplink(UplinkError::NoProgram)) => {
                Check::fail(NAME, "neither pasta nor slirp4netns is installed", INSTALL)
            }
            Some(NetworkError::Uplink(UplinkError::Missing { path, .. })) => {
                Check::fail(NAME, format!("{} is not there", path.display()), INSTALL)
            }
            _ => Check::fail(NAME, chain(&*error), OTHER),
        },
    }
}

/// What to do about a program that does not work.
const OTHER: &str = "name the other program as `uplink` under [network]: pasta or slirp4netns";

/// What to install.
const INSTALL: &str = "apt install slirp4netns, dnf install passt";

/// What to do about the device.
const TUN_HINT: &str = "sudo modprobe tun\n\
     sudo chmod 0666 /dev/net/tun\n\
     In a container that this runs in: --device /dev/net/tun";

fn found(trial: &UplinkTrial) -> Check {
    match trial {
        UplinkTrial::None => Check::ok(NAME, "none, by the settings: jobs reach nothing outside"),
        UplinkTrial::NoRoute(uplink) => Check::warn(
            NAME,
            format!("{}; not tried: this host has no default route", named(uplink)),
            "ip route add default via ADDRESS",
        ),
        UplinkTrial::Answered(uplink, ATTEMPTS) => {
            Check::ok(NAME, format!("{} leads out, and answers who has said all", named(uplink)))
        }
        UplinkTrial::Answered(uplink, answered) => Check::warn(
            NAME,
            format!(
                "{} leads out, but loses connections whose client has said all ({answered} of {} were \
                 answered): what asks so, as nc and some package managers, waits for ever",
                named(uplink),
                answered + 1
            ),
            "apt install slirp4netns, or install passt of October 2026 or newer",
        ),
    }
}

fn named(uplink: &Uplink) -> String {
    let version =
        uplink.version.as_ref().map_or("of unknown version".to_owned(), ToString::to_string);
    format!("{} {version}", uplink.program.display())
}
