//! Starting a program that leads out, and waiting until it does.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use super::{MTU, PREFIX, UplinkError};
use super::{Uplink, UplinkKind, slirp4netns};
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::process::{End, Program};

/// How long a program may take until it leads out.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// What a forwarded port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// A port of the host that is listened on, and leads to the port of the same number of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    pub transport: Transport,
    /// The host's address.
    pub address: IpAddr,
    pub port: u16,
}

/// The network between a program and the namespace, by IPv4. All three are of one block of
/// [`PREFIX`](super::PREFIX) bits, and end with 100, 2 and 3: slirp4netns has no other ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway4 {
    /// The namespace's address.
    pub inside: Ipv4Addr,
    /// Where it sends everything to.
    pub gateway: Ipv4Addr,
    /// Where the host's first resolver answers, one on its loopback too.
    pub resolver: Ipv4Addr,
}

/// The network between a program and the namespace, by IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway6 {
    /// The namespace's address.
    pub inside: Ipv6Addr,
    /// Where it sends everything to.
    pub gateway: Ipv6Addr,
}

/// What a program is to lead out of.
#[derive(Clone, Debug)]
pub struct UplinkRequest<'a> {
    /// The pin of the network namespace.
    pub netns: &'a Path,
    /// A directory for the program's own files, which nobody else may enter.
    pub directory: &'a Path,
    /// What the program's end in the namespace is called.
    pub device: &'a str,
    pub v4: Gateway4,
    /// None if the host has no IPv6 to the world.
    pub v6: Option<Gateway6>,
    pub forwards: &'a [Forward],
}

impl Uplink {
    /// Starts the program, and waits until the namespace has its device, addresses and routes and the host's
    /// ports are listened on. It lives on until it is killed, or the pid namespace of this process ends.
    ///
    /// To be called in the network namespace that is to be led to, by a process of the user namespace that the
    /// other network namespace belongs to.
    ///
    /// # Errors
    ///
    /// Fails if the program does not come up, as when a port is in use; nothing of it is left then.
    pub fn start(&self, request: &UplinkRequest<'_>) -> Result<Identity, UplinkError> {
        self.check_device()?;
        match self.kind {
            UplinkKind::Pasta => start_pasta(&self.program, request),
            UplinkKind::Slirp4netns => slirp4netns::start(&self.program, request),
        }
    }
}

/// Removes what an earlier program left, for one that makes its files anew.
pub fn remove_left(path: &Path) -> Result<(), UplinkError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => Ok(result.at("remove", path)?),
    }
}

/// Returns what a program said, on one line, without what it says of its log.
pub fn on_one_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    // pasta of 2023 tells every line twice where no system log listens.
    let lines = text.lines().map(str::trim);
    let told: Vec<_> =
        lines.filter(|line| !line.is_empty() && !line.ends_with("bytes to syslog")).collect();
    match told.as_slice() {
        [] => "it says nothing".to_owned(),
        told => told.join("; "),
    }
}

#[test]
fn what_is_said_of_the_system_log_is_left_out() {
    let output =
        b"Failed to send 46 bytes to syslog\nNo external routable interface for IPv4\n\n x\n";
    assert_eq!(on_one_line(output), "No external routable interface for IPv4; x");
    assert_eq!(on_one_line(b"\n"), "it says nothing");
}

/// Where it writes which process it is.
const PASTA_PID: &str = "pasta.pid";

fn start_pasta(program: &Path, request: &UplinkRequest<'_>) -> Result<Identity, UplinkError> {
    let pid = request.directory.join(PASTA_PID);
    remove_left(&pid)?;
    let arguments = arguments(request, &pid);
    let mut run = Program::new(program, Path::new("/"));
    run.argv = std::iter::once(OsStr::new("pasta"))
        .chain(arguments.iter().map(OsString::as_os_str))
        .collect();
    run.timeout = Some(TIMEOUT);
    let finished = run.run()?;
    let failed = |message| UplinkError::Failed { program: program.to_owned(), message };
    if finished.end != End::Exited(0) {
        return Err(failed(match finished.end {
            End::TimedOut => format!("it took more than {} seconds", TIMEOUT.as_secs()),
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
