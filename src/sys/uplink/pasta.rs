//! pasta: its arguments. It goes to the background once it leads out.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::start::{self, Forward, Transport, UplinkRequest, on_one_line, remove_left};
use super::{MTU, PREFIX, UplinkError};
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::process::{End, Program};

/// Where it writes which process it is.
const PID: &str = "pasta.pid";

pub(super) fn start(program: &Path, request: &UplinkRequest<'_>) -> Result<Identity, UplinkError> {
    let pid = request.directory.join(PID);
    remove_left(&pid)?;
    let arguments = arguments(request, &pid);
    let mut run = Program::new(program, Path::new("/"));
    run.argv = std::iter::once(OsStr::new("pasta"))
        .chain(arguments.iter().map(OsString::as_os_str))
        .collect();
    run.timeout = Some(start::TIMEOUT);
    let finished = run.run()?;
    let failed = |message| UplinkError::Failed { program: program.to_owned(), message };
    if finished.end != End::Exited(0) {
        return Err(failed(match finished.end {
            End::TimedOut => format!("it took more than {} seconds", start::TIMEOUT.as_secs()),
            _ => on_one_line(&finished.stderr),
        }));
    }
    let text = fs::read_to_string(&pid).at("read", &pid)?;
    let number = text.trim().parse().ok();
    let process = number.and_then(Identity::of).filter(Identity::is_running);
    process.ok_or_else(|| failed(format!("it ended at once; {}", on_one_line(&finished.stderr))))
}

fn arguments(request: &UplinkRequest<'_>, pid: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    // It closes its end with the pin. User 0 is all that is sure to be there: it would become another one.
    all.extend(["--config-net", "--netns-only", "--runas", "0", "--quiet"].map(OsString::from));
    let mut option = |name: &str, value: &OsStr| all.extend([name.into(), value.to_owned()]);
    option("--netns", request.netns.as_os_str());
    option("--pid", pid.as_os_str());
    option("--ns-ifname", request.device.as_ref());
    option("--mtu", MTU.to_string().as_ref());
    option("--address", request.v4.inside.to_string().as_ref());
    option("--netmask", PREFIX.to_string().as_ref());
    option("--gateway", request.v4.gateway.to_string().as_ref());
    option("--dns-forward", request.v4.resolver.to_string().as_ref());
    if let Some(v6) = request.v6 {
        option("--address", v6.inside.to_string().as_ref());
        option("--gateway", v6.gateway.to_string().as_ref());
    }
    for (name, transport) in [("--tcp-ports", Transport::Tcp), ("--udp-ports", Transport::Udp)] {
        let forwards = request.forwards.iter().filter(|forward| forward.transport == transport);
        let mut specs: Vec<_> = forwards.map(spec).collect();
        if specs.is_empty() {
            specs.push("none".to_owned());
        }
        specs.iter().for_each(|spec| option(name, spec.as_ref()));
    }
    // Neither the host's loopback, by a port or by the gateway's address, nor what only machines need that
    // configure themselves.
    option("--tcp-ns", "none".as_ref());
    option("--udp-ns", "none".as_ref());
    all.extend(["--no-map-gw", "--no-dhcp", "--no-dhcpv6", "--no-ra"].map(OsString::from));
    if request.v6.is_none() {
        all.push("--ipv4-only".into());
    }
    all
}

/// Returns a port as pasta takes it.
fn spec(forward: &Forward) -> String {
    match forward.address {
        IpAddr::V4(address) => format!("{address}/{}", forward.port),
        IpAddr::V6(address) => format!("{address}/{}", forward.port),
    }
}
