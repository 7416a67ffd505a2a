//! Uplinks of networks in a rootless user's namespace: a program of that user connects the
//! namespace to the host's own network. The program listens and resolves names there.
//!
//! [`test_uplink`] tests whether an uplink works, and whether clients get an answer after they
//! half-close, with the host itself as the server.

use std::fs::DirBuilder;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use oci_hooks_files::fs::{PathContext as _, read_if_there, remove_if_there, replace_unsynced};
use oci_hooks_files::record::{RecordError, decode, encode};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::netns;
use oci_hooks_host::privilege::host_network;

use super::error::NetworkError;
use super::outside::{DEVICE, UplinkRecord, listened_on, source};
use super::port::PublishedPort;
use super::record::{EndpointRecord, NetworkRecord, directory, records};
use super::request::NetworkOptions;
use super::uplink_program::{Gateway4, Gateway6, PortForward, Uplink, UplinkChoice, UplinkRequest};

/// File at which the rootless user's network namespace is pinned, by which the uplink program
/// enters it. The pins of containers beside it have other names.
const PIN: &str = "host.netns";

/// Identity of the uplink process, in the directory of its network.
const PROCESS: &str = "uplink.json";

/// Timeout for a killed program to end.
const KILL: Duration = Duration::from_secs(10);

/// Returns the address of the uplink program's resolver.
pub fn resolver(record: &NetworkRecord, options: &NetworkOptions) -> Option<IpAddr> {
    let uplink = record.uplink.as_ref()?;
    Some(record.block(options, uplink.number).resolver().v4.into())
}

/// Returns the ports of the host that the uplink program forwards to its networks.
fn port_forwards(
    options: &NetworkOptions,
    uplink: &UplinkRecord,
) -> Result<Vec<PortForward>, NetworkError> {
    let listen = |published: &PublishedPort| -> Vec<PortForward> {
        let PublishedPort { protocol, host_port: port, .. } = *published;
        let addresses = listened_on(published.host_ip, uplink);
        let forward = |address| PortForward { protocol, address, port };
        addresses.into_iter().map(forward).collect()
    };
    let networks = records(options)?.known;
    let uses_it = |network: &&NetworkRecord| {
        network.uplink.as_ref().is_some_and(|other| other.network == uplink.network)
    };
    let endpoints = networks.iter().filter(uses_it).flat_map(|network| &network.endpoints);
    Ok(endpoints.flat_map(|endpoint: &EndpointRecord| &endpoint.outside).flat_map(listen).collect())
}

/// Returns whether the program started for a network has ended.
pub fn has_ended(options: &NetworkOptions, id: &str) -> Result<bool, NetworkError> {
    Ok(read(options, id)?.is_some_and(|process| !process.is_working()))
}

/// Returns whether no program has been started for a network yet.
pub fn is_missing(options: &NetworkOptions, id: &str) -> Result<bool, NetworkError> {
    Ok(read(options, id)?.is_none())
}

/// Starts the uplink program of a network whose containers are all recorded, unless it needs none or one runs
/// with the same ports. The caller holds the lock.
pub fn start_uplink(
    options: &NetworkOptions,
    record: &NetworkRecord,
    when: UplinkStart,
) -> Result<(), NetworkError> {
    let Some(uplink) = &record.uplink else { return Ok(()) };
    match (read(options, &uplink.network)?, when) {
        (Some(process), UplinkStart::Missing) if process.is_working() => return Ok(()),
        (None, UplinkStart::Changed) => return Ok(()),
        _ => end(options, &uplink.network)?,
    }
    let directory = directory(options, &uplink.network);
    let pin = directory.join(PIN);
    if !pin.exists() {
        let host = netns::open_current()?;
        netns::pin(std::os::fd::AsFd::as_fd(&host), &pin)?;
    }
    let block = record.block(options, uplink.number);
    let [inside, gateway, resolver] = [block.uplink(), block.gateway(), block.resolver()];
    let forwards = port_forwards(options, uplink)?;
    let request = UplinkRequest {
        netns: &pin,
        directory: &directory,
        device: DEVICE,
        v4: Gateway4 { inside: inside.v4, gateway: gateway.v4, resolver: resolver.v4 },
        v6: uplink.ipv6.then_some(Gateway6 { inside: inside.v6, gateway: gateway.v6 }),
        forwards: &forwards,
    };
    let program = Uplink { kind: uplink.kind, program: uplink.program.clone(), version: None };
    let process = host_network::run(|| program.start(&request))?;
    write(options, &uplink.network, process)
}

/// Condition for starting an uplink program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UplinkStart {
    Missing,
    /// The program is started only if one was started before, which it replaces because ports have
    /// changed.
    Changed,
}

/// Ends the program of a network; does nothing if there is none.
pub fn end(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
    let path = directory(options, id).join(PROCESS);
    // If the record is unreadable, the process ends once the pin is removed.
    if let Ok(Some(process)) = read(options, id) {
        process.kill(KILL).with_path("end the process of", &path)?;
    }
    Ok(remove_if_there(&path)?)
}

/// Kills the program of a network that is about to be removed, without waiting for its end: the kernel needs
/// time to remove the interface.
pub fn end_soon(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
    match read(options, id) {
        Ok(Some(process)) => {
            let path = directory(options, id).join(PROCESS);
            Ok(process.kill_soon().with_path("end the process of", &path)?)
        }
        // If the record is unreadable, the process ends once the pin is removed.
        Ok(None) | Err(_) => Ok(()),
    }
}

pub(crate) fn read(
    options: &NetworkOptions,
    id: &str,
) -> Result<Option<ProcessIdentity>, NetworkError> {
    let path = directory(options, id).join(PROCESS);
    let Some(text) = read_if_there(&path, 1 << 12)? else { return Ok(None) };
    let process: Result<_, RecordError> = decode(&path, &text);
    Ok(Some(process?))
}

fn write(options: &NetworkOptions, id: &str, process: ProcessIdentity) -> Result<(), NetworkError> {
    let path = directory(options, id).join(PROCESS);
    Ok(replace_unsynced(&path, &encode(&process), 0o600)?)
}

/// Number of clients: a program that loses connections after a half-close loses one of this many.
pub const ATTEMPTS: usize = 20;

/// Timeout of an answer by a program on the same machine.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Address blocks for documentation (RFC 5737), of which at least one does not have the host's
/// address.
const BLOCKS: [[u8; 3]; 2] = [[198, 51, 100], [203, 0, 113]];

/// Returns the addresses of the link between the program and the namespace, in a block without the
/// host's address.
fn gateway(host: Ipv4Addr) -> Gateway4 {
    let is_other = |block: &&[u8; 3]| !host.octets().starts_with(&block[..]);
    let [a, b, c] = BLOCKS.iter().find(is_other).copied().unwrap_or(BLOCKS[0]);
    let address = |last| Ipv4Addr::new(a, b, c, last);
    Gateway4 { inside: address(100), gateway: address(2), resolver: address(3) }
}

/// Result of testing an uplink.
#[derive(Clone, Debug)]
pub enum UplinkTestResult {
    None,
    /// The host itself has no IPv4 route to the world.
    NoRoute(Uplink),
    /// The uplink works, and this many of [`ATTEMPTS`] clients got an answer before one did not.
    Answered(Uplink, usize),
}

/// Starts the uplink program that jobs would have in the calling thread's network namespace, and connects to
/// the host through it. Its files are in `dir`, which is created.
///
/// The caller must be alone in that namespace, which ends with its PID namespace.
///
/// # Errors
///
/// Fails if no program is found, if the program does not start, or if the host is not reached.
pub fn test_uplink(choice: &UplinkChoice, dir: &Path) -> Result<UplinkTestResult, NetworkError> {
    let found = host_network::run(|| Uplink::find(choice))?;
    let Some(uplink) = found else { return Ok(UplinkTestResult::None) };
    uplink.check_device()?;
    let Some(IpAddr::V4(address)) = host_network::run(source) else {
        return Ok(UplinkTestResult::NoRoute(uplink));
    };
    DirBuilder::new().mode(0o700).create(dir).with_path("create the directory", dir)?;
    let pin = dir.join(PIN);
    netns::pin(netns::open_current()?.as_fd(), &pin)?;
    let request = UplinkRequest {
        netns: &pin,
        directory: dir,
        device: DEVICE,
        v4: gateway(address),
        v6: None,
        forwards: &[],
    };
    let process = host_network::run(|| uplink.start(&request))?;
    let asked = host_network::run(|| serve(address.into())).and_then(ask);
    let ended = process.kill(KILL).and(netns::unpin(&pin).map_err(io::Error::other));
    let answered = asked.with_path("reach the host through", &uplink.program)?;
    ended.with_path("end", &uplink.program)?;
    Ok(UplinkTestResult::Answered(uplink, answered))
}

/// Starts a server that answers [`ATTEMPTS`] clients after they half-close, and returns its
/// address.
fn serve(address: IpAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let listens_on = listener.local_addr()?;
    thread::Builder::new().name("uplink-test".to_owned()).spawn(move || {
        for mut client in listener.incoming().take(ATTEMPTS).map_while(Result::ok) {
            let mut said = Vec::new();
            let _ = client.set_read_timeout(Some(TIMEOUT));
            // A client without an answer reports that itself.
            let _ = (&mut client).take(16).read_to_end(&mut said);
            let _ = client.write_all(&said);
        }
    })?;
    Ok(listens_on)
}

/// Returns the number of clients that got an answer before one did not. Fails if a client cannot connect.
fn ask(server: SocketAddr) -> io::Result<usize> {
    for attempt in 0..ATTEMPTS {
        let mut client = TcpStream::connect_timeout(&server, TIMEOUT)?;
        client.set_read_timeout(Some(TIMEOUT))?;
        client.write_all(b"all")?;
        client.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        if client.take(16).read_to_end(&mut answer).is_err() || answer != b"all" {
            return Ok(attempt);
        }
    }
    Ok(ATTEMPTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_closed_clients_are_answered() {
        let server = serve(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(ask(server).unwrap(), ATTEMPTS);
        // The server has answered all its clients; it may still be about to stop listening.
        assert!(matches!(ask(server), Ok(0) | Err(_)));
    }

    #[test]
    fn uplink_address_is_outside_of_the_network() {
        let of = |host: [u8; 4]| gateway(host.into()).inside.octets();
        assert_eq!(of([198, 51, 100, 7]), [203, 0, 113, 100]);
        assert_eq!(of([192, 0, 2, 2]), [198, 51, 100, 100]);
    }

    #[test]
    fn silent_server_is_detected_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let answering = thread::spawn(move || drop(listener.accept().unwrap()));
        // The connection is reset, or ended without an answer.
        assert!(matches!(ask(server), Ok(0) | Err(_)));
        answering.join().unwrap();
    }
}
