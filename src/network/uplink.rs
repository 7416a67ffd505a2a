//! The way out of networks whose host is a namespace of an ordinary user's own: a program of that user leads
//! from there to the real host. What is listened on and looked up there is a matter of the real host's network.

mod trial;

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::interface::Interface;
use super::job::NetworkOptions;
use super::netlink::{self, Routes};
use super::port::{PortMapping, Protocol, Published};
use super::record::{EndpointRecord, Record, directory};
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, read_if_there,
};
use crate::sys::identity::Identity;
use crate::sys::netns;
use crate::sys::privilege::outside;
use crate::sys::record::{RecordError, decode, encode};
use crate::sys::uplink::{
    Forward, Gateway4, Gateway6, Transport, Uplink, UplinkChoice, UplinkKind, UplinkRequest,
};

pub use trial::{ATTEMPTS, UplinkTrial, try_uplink};

/// What the program's end in our host's namespace is called.
const DEVICE: &str = "uplink0";

/// The pin of our host's namespace, by which the program enters it. Not to be taken for a container of that
/// name.
const PIN: &str = "host.netns";

/// Which process leads out, in the directory of its network.
const PROCESS: &str = "uplink.json";

/// How long a killed program may take to end.
const KILL: Duration = Duration::from_secs(10);

/// How a network gets out, as it was decided when it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UplinkRecord {
    pub(super) kind: UplinkKind,
    /// Whether connections hang whose client has said all.
    pub(super) loses_half_closed: bool,
    pub(super) program: PathBuf,
    /// The number of the block of the pools that is between the program and our host.
    pub(super) number: u32,
    /// Whether IPv6 gets through.
    pub(super) ipv6: bool,
    /// The addresses of the real host, its loopback aside.
    pub(super) addresses: Vec<IpAddr>,
    /// That of them which the world sees, if there is a way to the world.
    pub(super) address: Option<IpAddr>,
}

/// What is known of the real host before a network is made.
pub(super) struct Outside {
    uplink: Option<Uplink>,
    pub(super) routes: Routes<Ipv4Net>,
    pub(super) routes6: Routes<Ipv6Net>,
    addresses: Vec<IpAddr>,
    address: Option<IpAddr>,
}

impl Outside {
    /// Looks at the real host, and for a program that leads there if that takes one.
    pub(super) fn look(options: &NetworkOptions) -> Result<Self, NetworkError> {
        let choice = match options.privilege.has_own_network() {
            true => &options.uplink,
            false => &UplinkChoice::None,
        };
        outside::run(|| {
            let uplink = Uplink::find(choice)?;
            if let Some(uplink) = &uplink {
                uplink.check_device()?;
            }
            Ok(Outside {
                routes: netlink::routes().at("read", Path::new("/proc/thread-self/net/route"))?,
                routes6: netlink::routes6()
                    .at("read", Path::new("/proc/thread-self/net/ipv6_route"))?,
                addresses: if uplink.is_some() { addresses()? } else { Vec::new() },
                address: uplink.as_ref().and_then(|_| source()),
                uplink,
            })
        })
    }

    /// Returns how a network gets out that has this block between it and the program; none if it does not.
    pub(super) fn uplink(&self, number: u32) -> Option<UplinkRecord> {
        let uplink = self.uplink.clone()?;
        let loses_half_closed = uplink.loses_half_closed();
        let Uplink { kind, program, .. } = uplink;
        Some(UplinkRecord {
            kind,
            loses_half_closed,
            program,
            number,
            ipv6: kind.has_ipv6() && !self.routes6.defaults.is_empty(),
            addresses: self.addresses.clone(),
            address: self.address,
        })
    }
}

impl UplinkRecord {
    /// Returns the address to publish a port on, if the program does not listen on such ones.
    pub(super) fn cannot_listen(&self, mapping: &PortMapping) -> Option<IpAddr> {
        mapping.host_ip.filter(|ip| ip.is_ipv6() && !self.ipv6)
    }
}

/// Returns the name of the interface that leads out.
pub(super) fn device() -> Interface {
    DEVICE.parse().expect("it is a name of few letters")
}

/// Returns the addresses of the calling thread's network namespace, but for those of its loopback and of
/// single links.
fn addresses() -> Result<Vec<IpAddr>, NetworkError> {
    let read = |path: &str| match fs::read_to_string(path) {
        // No IPv6 at all.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.at("read", Path::new(path)),
    };
    let v4 = local4(&read("/proc/thread-self/net/fib_trie")?);
    let v6 = local6(&read("/proc/thread-self/net/if_inet6")?);
    let mut all: Vec<IpAddr> =
        v4.into_iter().map(IpAddr::from).chain(v6.into_iter().map(IpAddr::from)).collect();
    all.retain(|address| !address.is_loopback());
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Returns the addresses that the kernel's tree of routes calls its own.
fn local4(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in trie.lines() {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(leaf);
        }
    }
    found
}

/// Returns the addresses that the kernel lists, but for those of single links.
fn local6(list: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    let all = list.lines().filter_map(address).map(Ipv6Addr::from);
    all.filter(|address| !address.is_unicast_link_local()).collect()
}

/// Returns the address that the host has to the world; nothing is sent.
fn source() -> Option<IpAddr> {
    // Of TEST-NET-1, and of the block that routers discard.
    let targets: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1).into()),
    ];
    targets.into_iter().find_map(|(any, target)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((target, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

/// Returns the address of the program's own resolver.
pub(super) fn resolver(record: &Record, options: &NetworkOptions) -> Option<IpAddr> {
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

/// Returns the addresses of the real host that a port is published on: its loopback, if none is said. An
/// ordinary user's job is nobody's server.
pub(super) fn listened_on(host_ip: Option<IpAddr>, uplink: &UplinkRecord) -> Vec<IpAddr> {
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    match host_ip {
        Some(ip) => vec![ip],
        None => loopback
            .into_iter()
            // An old pasta has a port on one address only.
            .filter(|ip| ip.is_ipv4() || uplink.ipv6 && !uplink.loses_half_closed)
            .collect(),
    }
}

/// Returns whether the program has ended that was started for a network.
pub(super) fn has_ended(options: &NetworkOptions, id: &str) -> Result<bool, NetworkError> {
    Ok(read(options, id)?.is_some_and(|process| !process.is_working()))
}

/// Returns whether no program was started for a network yet.
pub(super) fn is_missing(options: &NetworkOptions, id: &str) -> Result<bool, NetworkError> {
    Ok(read(options, id)?.is_none())
}

/// Has a program lead out of a network whose containers are all recorded, if it is to and none does with the
/// same ports. The lock is held.
pub(super) fn lead_out(
    options: &NetworkOptions,
    record: &Record,
    when: When,
) -> Result<(), NetworkError> {
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
pub(super) enum When {
    /// If none runs.
    Missing,
    /// If one was started, in place of that: its ports are others now.
    Changed,
}

/// Ends the program of a network; that there is none is fine.
pub(super) fn end(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
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
pub(super) fn end_soon(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
    match read(options, id) {
        Ok(Some(process)) => {
            let path = directory(options, id).join(PROCESS);
            Ok(process.kill_soon().at("end the process of", &path)?)
        }
        // One that nobody can read is of a process that ends with the pin.
        Ok(None) | Err(_) => Ok(()),
    }
}

fn read(options: &NetworkOptions, id: &str) -> Result<Option<Identity>, NetworkError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_what_the_kernel_tells() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
            Local:\n  +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.1\n           /32 host LOCAL\n\
               |-- 192.0.2.2\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let expected: [Ipv4Addr; 2] = [Ipv4Addr::LOCALHOST, "192.0.2.2".parse().unwrap()];
        assert_eq!(local4(trie), expected);
        let list = "fe80000000000000904a9afffeb67c53 02 40 20 80     eth0\n\
            20010db8000000000000000000000007 02 40 00 80     eth0\n\
            00000000000000000000000000000001 01 80 10 80       lo\nnot an address\n";
        assert_eq!(local6(list), ["2001:db8::7".parse::<Ipv6Addr>().unwrap(), Ipv6Addr::LOCALHOST]);
        assert_eq!((local4("").len(), local6("").len()), (0, 0));
    }
}
