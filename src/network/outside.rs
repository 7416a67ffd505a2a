//! The real host beyond the namespace of an ordinary user, where networks of that user are made: its addresses and
//! routes, and the program that leads there.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::interface::Interface;
use super::netlink::{self, Routes};
use super::port::PortMapping;
use super::request::NetworkOptions;
use crate::sys::fs::PathContext as _;
use crate::sys::privilege::outside;
use crate::sys::uplink::{Uplink, UplinkChoice, UplinkKind};

/// What the program's end in our host's namespace is called.
pub const DEVICE: &str = "uplink0";

/// How a network gets out, as it was decided when it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UplinkRecord {
    pub kind: UplinkKind,
    /// Whether connections hang whose client has said all.
    pub loses_half_closed: bool,
    pub program: PathBuf,
    /// The number of the block of the pools that is between the program and our host.
    pub number: u32,
    /// Whether IPv6 gets through.
    pub ipv6: bool,
    /// The addresses of the real host, its loopback aside.
    pub addresses: Vec<IpAddr>,
    /// That of them which the world sees, if there is a way to the world.
    pub address: Option<IpAddr>,
}

/// What is known of the real host before a network is made.
pub struct Outside {
    uplink: Option<Uplink>,
    pub routes: Routes<Ipv4Net>,
    pub routes6: Routes<Ipv6Net>,
    addresses: Vec<IpAddr>,
    address: Option<IpAddr>,
}

impl Outside {
    /// Looks at the real host, and for a program that leads there if that takes one.
    pub fn look(options: &NetworkOptions) -> Result<Self, NetworkError> {
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
    pub fn uplink(&self, number: u32) -> Option<UplinkRecord> {
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
    pub fn cannot_listen(&self, mapping: &PortMapping) -> Option<IpAddr> {
        mapping.host_ip.filter(|ip| ip.is_ipv6() && !self.ipv6)
    }
}

/// Returns the name of the interface that leads out.
pub fn device() -> Interface {
    DEVICE.parse().expect("it is a name of few letters")
}

/// Returns the addresses of the calling thread's network namespace, but for those of its loopback and of
/// single links.
pub fn addresses() -> Result<Vec<IpAddr>, NetworkError> {
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
pub fn source() -> Option<IpAddr> {
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

/// Returns the addresses of the real host that a port is published on: its loopback, if none is said. An
/// ordinary user's job is nobody's server.
pub fn listened_on(host_ip: Option<IpAddr>, uplink: &UplinkRecord) -> Vec<IpAddr> {
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
