//! Starting an uplink program, and waiting until the network is ready.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use oci_hooks_files::fs::{PathContext as _, remove_if_there};
use oci_hooks_files::process::{ChildProgram, ProgramEnd};
use oci_hooks_host::identity::ProcessIdentity;

use super::super::port::PortProtocol;
use super::super::subnet::AddressPlan;
use super::{MTU, Uplink, UplinkError, UplinkKind, slirp4netns};

/// Time limit for an uplink program to start.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A port of the host that is forwarded to the same port in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    pub protocol: PortProtocol,
    /// Address of the host to listen on.
    pub address: IpAddr,
    pub port: u16,
}

/// The IPv4 network between an uplink program and the namespace. All three addresses have the same prefix of
/// [`AddressPlan::PREFIX`] bits, and end with 100, 2 and 3, which are fixed in slirp4netns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway4 {
    pub inside: Ipv4Addr,
    /// Default gateway of the namespace.
    pub gateway: Ipv4Addr,
    /// Address that forwards to the host's first resolver, even on the host's loopback.
    pub resolver: Ipv4Addr,
}

/// The IPv6 network between an uplink program and the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway6 {
    pub inside: Ipv6Addr,
    /// Default gateway of the namespace.
    pub gateway: Ipv6Addr,
}

/// The network namespace to connect, with its addresses and ports.
#[derive(Clone, Debug)]
pub struct UplinkRequest<'a> {
    /// File on which the network namespace is pinned by a bind mount.
    pub netns: &'a Path,
    /// Directory for the program's own files, private to the user.
    pub directory: &'a Path,
    /// Name of the tap device in the namespace.
    pub device: &'a str,
    pub v4: Gateway4,
    /// `None` if the host has no IPv6 connectivity.
    pub v6: Option<Gateway6>,
    pub forwards: &'a [PortForward],
}

impl Uplink {
    /// Starts the program, and waits until the namespace has its device, addresses and routes and the program
    /// listens on the host's ports. It runs until it is killed, or the PID namespace of this process ends.
    ///
    /// To be called in the host's network namespace, by a process in the user namespace that owns the other
    /// network namespace.
    ///
    /// # Errors
    ///
    /// Fails if the program does not start, as when a port is in use; no process is left then.
    pub fn start(&self, request: &UplinkRequest<'_>) -> Result<ProcessIdentity, UplinkError> {
        self.check_device()?;
        match self.kind {
            UplinkKind::Pasta => start_pasta(&self.program, request),
            UplinkKind::Slirp4netns => slirp4netns::start(&self.program, request),
        }
    }
}

/// Returns the output of a program on one line, without messages about the system log.
pub fn to_one_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    // pasta of 2023 adds a message for each line if there is no system log.
    let lines = text.lines().map(str::trim);
    let told: Vec<_> =
        lines.filter(|line| !line.is_empty() && !line.ends_with("bytes to syslog")).collect();
    match told.as_slice() {
        [] => "no output".to_owned(),
        told => told.join("; "),
    }
}

#[test]
fn syslog_messages_are_removed_from_the_output() {
    let output =
        b"Failed to send 46 bytes to syslog\nNo external routable interface for IPv4\n\n x\n";
    assert_eq!(to_one_line(output), "No external routable interface for IPv4; x");
    assert_eq!(to_one_line(b"\n"), "no output");
}

/// Name of the file to which pasta writes its PID.
const PASTA_PID: &str = "pasta.pid";

fn start_pasta(
    program: &Path,
    request: &UplinkRequest<'_>,
) -> Result<ProcessIdentity, UplinkError> {
    let pid = request.directory.join(PASTA_PID);
    remove_if_there(&pid)?;
    let arguments = arguments(request, &pid);
    let mut run = ChildProgram::new(program, Path::new("/"));
    run.argv = std::iter::once(OsStr::new("pasta"))
        .chain(arguments.iter().map(OsString::as_os_str))
        .collect();
    run.timeout = Some(TIMEOUT);
    let finished = run.run()?;
    let failed = |message| UplinkError::Failed { program: program.to_owned(), message };
    if finished.end != ProgramEnd::Exited(0) {
        return Err(failed(match finished.end {
            ProgramEnd::TimedOut => {
                format!("it was not ready within {} seconds", TIMEOUT.as_secs())
            }
            _ => to_one_line(&finished.stderr),
        }));
    }
    let text = fs::read_to_string(&pid).with_path("read", &pid)?;
    let number = text.trim().parse().ok();
    let process = number.and_then(ProcessIdentity::of).filter(ProcessIdentity::is_running);
    process
        .ok_or_else(|| failed(format!("it ended immediately: {}", to_one_line(&finished.stderr))))
}

fn arguments(request: &UplinkRequest<'_>, pid: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    // pasta exits when the pin is removed. By default it switches to another user, but only user 0 is sure to exist.
    all.extend(["--config-net", "--netns-only", "--runas", "0", "--quiet"].map(OsString::from));
    let mut option = |name: &str, value: &OsStr| all.extend([name.into(), value.to_owned()]);
    option("--netns", request.netns.as_os_str());
    option("--pid", pid.as_os_str());
    option("--ns-ifname", request.device.as_ref());
    option("--mtu", MTU.to_string().as_ref());
    option("--address", request.v4.inside.to_string().as_ref());
    option("--netmask", AddressPlan::PREFIX.to_string().as_ref());
    option("--gateway", request.v4.gateway.to_string().as_ref());
    option("--dns-forward", request.v4.resolver.to_string().as_ref());
    if let Some(v6) = request.v6 {
        option("--address", v6.inside.to_string().as_ref());
        option("--gateway", v6.gateway.to_string().as_ref());
    }
    for (name, protocol) in [("--tcp-ports", PortProtocol::Tcp), ("--udp-ports", PortProtocol::Udp)]
    {
        let forwards = request.forwards.iter().filter(|forward| forward.protocol == protocol);
        let spec = |forward: &PortForward| format!("{}/{}", forward.address, forward.port);
        let mut specs: Vec<_> = forwards.map(spec).collect();
        if specs.is_empty() {
            specs.push("none".to_owned());
        }
        specs.iter().for_each(|spec| option(name, spec.as_ref()));
    }
    // No access to the host's loopback, by a port or by the gateway's address, and no DHCP or router
    // advertisements, which only self-configuring machines need.
    option("--tcp-ns", "none".as_ref());
    option("--udp-ns", "none".as_ref());
    all.extend(["--no-map-gw", "--no-dhcp", "--no-dhcpv6", "--no-ra"].map(OsString::from));
    if request.v6.is_none() {
        all.push("--ipv4-only".into());
    }
    all
}
