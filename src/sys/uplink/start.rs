//! Starting a program that leads out, and waiting until it does.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use super::{Uplink, UplinkError, UplinkKind, pasta, slirp4netns};
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;

/// How long a program may take until it leads out.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

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
            UplinkKind::Pasta => pasta::start(&self.program, request),
            UplinkKind::Slirp4netns => slirp4netns::start(&self.program, request),
        }
    }
}

/// Removes what an earlier program left, for one that makes its files anew.
pub(super) fn remove_left(path: &Path) -> Result<(), UplinkError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => Ok(result.at("remove", path)?),
    }
}

/// Returns what a program said, on one line, without what it says of its log.
pub(super) fn on_one_line(output: &[u8]) -> String {
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
