//! The real host: the host's own network namespace, as opposed to the namespace in which a rootless
//! user's networks are created. Its addresses and routes, and the uplink program that connects the
//! two.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::{fs, io};

use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::privilege::host_network;
use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::interface::InterfaceName;
use super::netlink::{self, RouteTable};
use super::port::PortMapping;
use super::request::NetworkOptions;
use super::uplink_program::{Uplink, UplinkChoice, UplinkKind};

/// Interface of the uplink program in the rootless user's network namespace.
pub const DEVICE: &str = "uplink0";

/// Uplink of a network, chosen when the network was created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UplinkRecord {
    /// Id of the first network in the rootless user's network namespace. Its directory has the
    /// files of the uplink program, which all networks in the namespace share.
    pub network: String,
    pub kind: UplinkKind,
    /// If set, connections hang after the client half-closes.
    pub loses_half_closed: bool,
    pub program: PathBuf,
    /// Number of the address block, in the pools, for the link between the uplink program and the
    /// rootless user's network namespace.
    pub number: u32,
    /// If set, the uplink carries IPv6.
    pub ipv6: bool,
    /// Addresses of the host's own network namespace, without loopback.
    pub addresses: Vec<IpAddr>,
    /// Source address of the host's connections to other networks, if it has a route.
    pub address: Option<IpAddr>,
}

/// Network state of the host, outside a rootless user's namespace, before a network is created.
pub struct OutsideHost {
    uplink: Option<Uplink>,
    pub routes: RouteTable<Ipv4Net>,
    pub routes6: RouteTable<Ipv6Net>,
    addresses: Vec<IpAddr>,
    address: Option<IpAddr>,
}

impl OutsideHost {
    /// Examines the host's own network namespace, and finds an uplink program to it if one is
    /// needed.
    pub fn examine_host(options: &NetworkOptions) -> Result<Self, NetworkError> {
        let choice = match options.privilege.has_own_network() {
            true => &options.uplink,
            false => &UplinkChoice::None,
        };
        host_network::run(|| {
            let uplink = Uplink::find(choice)?;
            if let Some(uplink) = &uplink {
                uplink.check_device()?;
            }
            Ok(OutsideHost {
                routes: netlink::routes()
                    .with_path("read", Path::new("/proc/thread-self/net/route"))?,
                routes6: netlink::routes6()
                    .with_path("read", Path::new("/proc/thread-self/net/ipv6_route"))?,
                addresses: if uplink.is_some() { addresses()? } else { Vec::new() },
                address: uplink.as_ref().and_then(|_| source()),
                uplink,
            })
        })
    }

    /// Returns whether an uplink program connects networks to the host's own network namespace.
    pub fn has_uplink(&self) -> bool {
        self.uplink.is_some()
    }

    /// Returns the record of the uplink of a network; `None` without an uplink program. `number` is
    /// that of the address block for the link to the program.
    pub fn uplink(&self, network: &str, number: u32) -> Option<UplinkRecord> {
        let uplink = self.uplink.clone()?;
        let loses_half_closed = uplink.loses_half_closed();
        let Uplink { kind, program, .. } = uplink;
        Some(UplinkRecord {
            network: network.to_owned(),
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
    /// Returns the requested host address of a port, if the uplink program cannot listen on it.
    pub fn unavailable_address(&self, mapping: &PortMapping) -> Option<IpAddr> {
        mapping.host_ip.filter(|ip| ip.is_ipv6() && !self.ipv6)
    }
}

/// Returns the name of the uplink program's interface.
pub fn device() -> InterfaceName {
    DEVICE.parse().expect("it is a name of few letters")
}

/// Returns the addresses of the calling thread's network namespace, without loopback and IPv6 link-local addresses.
pub fn addresses() -> Result<Vec<IpAddr>, NetworkError> {
    let read = |path: &str| match fs::read_to_string(path) {
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.with_path("read", Path::new(path)),
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

/// Returns the local addresses in the kernel's routing trie.
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

/// Returns the addresses in the kernel's list, without link-local ones.
fn local6(list: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    let all = list.lines().filter_map(address).map(Ipv6Addr::from);
    all.filter(|address| !address.is_unicast_link_local()).collect()
}

/// Returns the source address of connections to other networks, if there is a route; sends no packet.
pub fn source() -> Option<IpAddr> {
    // Addresses of TEST-NET-1, and of the block that routers discard.
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

/// Returns the addresses of the host on which the uplink program publishes a port: `host_ip`, or by
/// default loopback only, because a rootless user's job is no public server.
pub fn listened_on(host_ip: Option<IpAddr>, uplink: &UplinkRecord) -> Vec<IpAddr> {
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    match host_ip {
        Some(ip) => vec![ip],
        None => loopback
            .into_iter()
            // An old pasta listens on one address only.
            .filter(|ip| ip.is_ipv4() || uplink.ipv6 && !uplink.loses_half_closed)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_parsed_from_the_kernels_lists() {
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
