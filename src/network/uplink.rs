//! The way out of networks whose host is a namespace of an ordinary user's own: a program of that user leads
//! from there to the real host. What is listened on and looked up there is a matter of the real host's network.
//!
//! [`try_uplink`] finds out whether the way out leads anywhere, and whether a client is answered that has said
//! all, with the host itself as the world.

use std::fs::{self, DirBuilder};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::error::NetworkError;
use super::outside::{DEVICE, UplinkRecord, listened_on, source};
use super::port::{Protocol, Published};
use super::record::{EndpointRecord, Record, directory};
use super::request::NetworkOptions;
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, read_if_there,
};
use crate::sys::identity::Identity;
use crate::sys::netns;
use crate::sys::privilege::outside;
use crate::sys::record::{RecordError, decode, encode};
use crate::sys::uplink::{
    Forward, Gateway4, Gateway6, Transport, Uplink, UplinkChoice, UplinkRequest,
};

/// The pin of our host's namespace, by which the program enters it. Not to be taken for a container of that
/// name.
const PIN: &str = "host.netns";

/// Which process leads out, in the directory of its network.
const PROCESS: &str = "uplink.json";

/// How long a killed program may take to end.
const KILL: Duration = Duration::from_secs(10);

/// Returns the address of the program's own resolver.
pub fn resolver(record: &Record, options: &NetworkOptions) -> Option<IpAddr> {
    let uplink = record.uplink.as_ref()?;
    Some(record.block(options, uplink.number).resolver().v4.into())
}

/// Returns the ports of the real host that lead to this network.
fn forwards(record: &Record, uplink: &UplinkRecord) -> Vec<Forward> {
    let listen = |published: &Published| -> Vec<Forward> {
        let transport = match published.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
        };
        let addresses = listened_on(published.host_ip, uplink);
        let forward = |address| Forward { transport, address, port: published.host_port };
        addresses.into_iter().map(forward).collect()
    };
    let endpoints = record.endpoints.iter();
    endpoints.flat_map(|endpoint: &EndpointRecord| &endpoint.outside).flat_map(listen).collect()
}

/// Returns whether the program has ended that was started for a network.
pub fn has_ended(options: &NetworkOptions, id: &str) -> Result<bool, NetworkError> {
    Ok(read(options, id)?.is_some_and(|process| !process.is_working()))
}

/// Returns whether no program was started for a network yet.
pub fn is_missing(options: &NetworkOptions, id: &str) -> Result<bool, NetworkError> {
    Ok(read(options, id)?.is_none())
}

/// Has a program lead out of a network whose containers are all recorded, if it is to and none does with the
/// same ports. The lock is held.
pub fn lead_out(options: &NetworkOptions, record: &Record, when: When) -> Result<(), NetworkError> {
    let Some(uplink) = &record.uplink else { return Ok(()) };
    match (read(options, &record.id)?, when) {
        (Some(process), When::Missing) if process.is_working() => return Ok(()),
        (None, When::Changed) => return Ok(()),
        _ => end(options, &record.id)?,
    }
    let directory = directory(options, &record.id);
    let pin = directory.join(PIN);
    if !pin.exists() {
        let host = netns::current()?;
        netns::pin(std::os::fd::AsFd::as_fd(&host), &pin)?;
    }
    let block = record.block(options, uplink.number);
    let [inside, gateway, resolver] = [block.uplink(), block.gateway(), block.resolver()];
    let forwards = forwards(record, uplink);
    let request = UplinkRequest {
        netns: &pin,
        directory: &directory,
        device: DEVICE,
        v4: Gateway4 { inside: inside.v4, gateway: gateway.v4, resolver: resolver.v4 },
        v6: uplink.ipv6.then_some(Gateway6 { inside: inside.v6, gateway: gateway.v6 }),
        forwards: &forwards,
    };
    let program = Uplink { kind: uplink.kind, program: uplink.program.clone(), version: None };
    let process = outside::run(|| program.start(&request))?;
    write(options, &record.id, process)
}

/// When a program is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// If none runs.
    Missing,
    /// If one was started, in place of that: its ports are others now.
    Changed,
}

/// Ends the program of a network; that there is none is fine.
pub fn end(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
    let path = directory(options, id).join(PROCESS);
    // One that nobody can read is of a process that ends with the pin.
    if let Ok(Some(process)) = read(options, id) {
        process.kill(KILL).at("end the process of", &path)?;
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => Ok(result.at("remove", &path)?),
    }
}

/// Has the program of a network killed that is about to go: the kernel takes its time for the interface.
pub fn end_soon(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
    match read(options, id) {
        Ok(Some(process)) => {
            let path = directory(options, id).join(PROCESS);
            Ok(process.kill_soon().at("end the process of", &path)?)
        }
        // One that nobody can read is of a process that ends with the pin.
        Ok(None) | Err(_) => Ok(()),
    }
}

pub(crate) fn read(options: &NetworkOptions, id: &str) -> Result<Option<Identity>, NetworkError> {
    let path = directory(options, id).join(PROCESS);
    let Some(text) = read_if_there(&path, 1 << 12)? else { return Ok(None) };
    let process: Result<_, RecordError> = decode(&path, &text);
    Ok(Some(process?))
}

fn write(options: &NetworkOptions, id: &str, process: Identity) -> Result<(), NetworkError> {
    let replace = ReplaceOptions {
        mode: Some(0o600),
        // The run directory does not outlive a boot.
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    let path = directory(options, id).join(PROCESS);
    Ok(FileAt::open(&path, Symlinks::Refuse)?.replace(&encode(&process), &replace)?)
}

/// How often it is asked: a program that loses some of what is asked so loses one of this many.
pub const ATTEMPTS: usize = 20;

/// How long an answer may take, of a program on the same machine.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Blocks for documentation, of which one at least is not the host's own.
const BLOCKS: [[u8; 3]; 2] = [[198, 51, 100], [203, 0, 113]];

/// Returns the network between the program and the namespace, which must not have the host's address in it.
fn gateway(host: Ipv4Addr) -> Gateway4 {
    let is_other = |block: &&[u8; 3]| !host.octets().starts_with(&block[..]);
    let [a, b, c] = BLOCKS.iter().find(is_other).copied().unwrap_or(BLOCKS[0]);
    let address = |last| Ipv4Addr::new(a, b, c, last);
    Gateway4 { inside: address(100), gateway: address(2), resolver: address(3) }
}

/// What was found.
#[derive(Clone, Debug)]
pub enum UplinkTrial {
    /// There is to be no way out.
    None,
    /// The host itself has no way to the world by IPv4.
    NoRoute(Uplink),
    /// It leads out, and so many of [`ATTEMPTS`] clients were answered until one was not.
    Answered(Uplink, usize),
}

/// Has the program that jobs would have lead out of the network namespace of the calling thread, and asks the
/// host by it. Its files are in `dir`, which is made.
///
/// To be called where there is nothing else in that namespace, and it ends with its process namespace.
///
/// # Errors
///
/// Fails if there is no such program, if it does not come up, or if the host is not reached at all.
pub fn try_uplink(choice: &UplinkChoice, dir: &Path) -> Result<UplinkTrial, NetworkError> {
    let found = outside::run(|| Uplink::find(choice))?;
    let Some(uplink) = found else { return Ok(UplinkTrial::None) };
    uplink.check_device()?;
    let Some(IpAddr::V4(address)) = outside::run(source) else {
        return Ok(UplinkTrial::NoRoute(uplink));
    };
    DirBuilder::new().mode(0o700).create(dir).at("make the directory", dir)?;
    let pin = dir.join(PIN);
    netns::pin(netns::current()?.as_fd(), &pin)?;
    let request = UplinkRequest {
        netns: &pin,
        directory: dir,
        device: DEVICE,
        v4: gateway(address),
        v6: None,
        forwards: &[],
    };
    let process = outside::run(|| uplink.start(&request))?;
    let asked = outside::run(|| serve(address.into())).and_then(ask);
    let ended = process.kill(TIMEOUT).and(netns::unpin(&pin).map_err(io::Error::other));
    let answered = asked.at("reach the host by", &uplink.program)?;
    ended.at("end", &uplink.program)?;
    Ok(UplinkTrial::Answered(uplink, answered))
}

/// Answers clients when they have said all, as long as this process lives. Returns where.
fn serve(address: IpAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let listens_on = listener.local_addr()?;
    thread::Builder::new().name("trial".to_owned()).spawn(move || {
        for mut client in listener.incoming().take(ATTEMPTS).map_while(Result::ok) {
            let mut said = Vec::new();
            let _ = client.set_read_timeout(Some(TIMEOUT));
            // Who is not answered finds it out.
            let _ = (&mut client).take(16).read_to_end(&mut said);
            let _ = client.write_all(&said);
        }
    })?;
    Ok(listens_on)
}

/// Returns how many clients were answered until one was not. It is an error if none is connected.
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
    fn clients_that_have_said_all_are_answered() {
        let server = serve(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(ask(server).unwrap(), ATTEMPTS);
        // It has answered all that it answers; it may still be about to stop listening.
        assert!(matches!(ask(server), Ok(0) | Err(_)));
    }

    #[test]
    fn the_hosts_address_is_not_in_the_network_to_it() {
        let of = |host: [u8; 4]| gateway(host.into()).inside.octets();
        assert_eq!(of([198, 51, 100, 7]), [203, 0, 113, 100]);
        assert_eq!(of([192, 0, 2, 2]), [198, 51, 100, 100]);
    }

    #[test]
    fn a_server_that_does_not_answer_is_found_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let answering = thread::spawn(move || drop(listener.accept().unwrap()));
        // The connection is reset, or ended without an answer.
        assert!(matches!(ask(server), Ok(0) | Err(_)));
        answering.join().unwrap();
    }
}
