//! What passes between jobs, the host and the world: one table of rules for nft, the same for all
//! networks. Published ports are elements of its maps, and what a network may is the group of its
//! interface: that goes with it.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::error::NetworkError;
use super::nftables::{Element, INET, IPV4, IPV6, Nftables};
use super::port::{Protocol, Published};
use super::record::LINK;
use super::subnet::Pair;
use crate::sys::process::{End, Program};

const TABLE: &str = "oci_hooks";
const RULES: &str = include_str!("rules.nft");

/// Counted up when the rules change: they are loaded anew then.
const VERSION: u32 = 1;

/// The group of a network's interface on the host if containers may use services of the host.
pub(super) const HOST_ACCESS: u32 = 1;

/// What Docker lets its admin decide about what is forwarded; everything else it drops.
const DOCKER: &str = "DOCKER-USER";

/// Where nft is; `PATH` of a service is not always what it should be.
const PROGRAMS: [&str; 4] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft", "/usr/local/sbin/nft"];
const TIMEOUT: Duration = Duration::from_secs(30);

/// A container's addresses, and the ports to reach them by.
pub(super) type Destination<'a> = (&'a [Published], Pair);

/// Makes the table unless it is there, with what is published already: after a boot, a new version,
/// or a firewall of the host that starts anew, there is none. The lock is held.
pub(super) fn install<'a>(
    published: impl Iterator<Item = Destination<'a>>,
) -> Result<(), NetworkError> {
    let nftables = Nftables::open().map_err(because("ask"))?;
    let version = format!("version_{VERSION}");
    if !nftables.has_chain(INET, TABLE, &version).map_err(because("ask"))? {
        nft(&RULES.replace("version_VERSION", &version))?;
        let elements: Vec<_> = published.flat_map(elements).collect();
        nftables.add(TABLE, &elements).map_err(because("publish ports"))?;
    }
    for (family, name) in [(IPV4, "ip"), (IPV6, "ip6")] {
        if nftables.has_chain(family, "filter", DOCKER).is_ok_and(|there| there) {
            // Where this does not work, Docker may still forward; if not, the first step fails.
            let _ = pass_docker(&nftables, family, name);
        }
    }
    Ok(())
}

/// Publishes ports.
pub(super) fn publish(destination: Destination<'_>) -> Result<(), NetworkError> {
    change(destination, |nftables, elements| nftables.add(TABLE, elements))
        .map_err(because("publish ports"))
}

/// Takes published ports back. One that is not there is no error: nobody knows how far a killed
/// process came.
pub(super) fn withdraw(destination: Destination<'_>) -> Result<(), NetworkError> {
    change(destination, |nftables, elements| nftables.delete(TABLE, elements))
        .map_err(because("take published ports back"))
}

fn change(
    destination: Destination<'_>,
    change: impl FnOnce(&Nftables, &[Element]) -> io::Result<()>,
) -> io::Result<()> {
    if destination.0.is_empty() {
        return Ok(());
    }
    change(&Nftables::open()?, &elements(destination).collect::<Vec<_>>())
}

fn because(action: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
    move |source| NetworkError::Firewall { action, source }
}

/// Lets through what comes from jobs, and what goes to them: our own rules look at that.
fn pass_docker(nftables: &Nftables, family: u8, name: &str) -> Result<(), NetworkError> {
    let rules = nftables.rules(family, "filter", DOCKER).map_err(because("ask"))?;
    if rules.windows(LINK.len()).any(|bytes| bytes == LINK.as_bytes()) {
        return Ok(());
    }
    let rule = |side| format!("insert rule {name} filter {DOCKER} {side} \"{LINK}*\" accept\n");
    nft(&(rule("iifname") + &rule("oifname")))
}

fn elements((ports, container): Destination<'_>) -> impl Iterator<Item = Element> {
    ports.iter().flat_map(move |port| {
        let element = |map, ip: Option<IpAddr>, to: IpAddr| Element {
            map,
            key: joined(ip, Some(port.protocol), port.host_port),
            data: joined(Some(to), None, port.container_port),
        };
        let (v4, v6) = (container.v4.into(), container.v6.into());
        let (one, other) = match port.host_ip {
            None => (element("any4", None, v4), Some(element("any6", None, v6))),
            Some(ip) if ip.is_ipv4() => (element("one4", Some(ip), v4), None),
            Some(ip) => (element("one6", Some(ip), v6), None),
        };
        [Some(one), other].into_iter().flatten()
    })
}

/// Joins fields as the kernel does: each is padded to four bytes.
fn joined(ip: Option<IpAddr>, protocol: Option<Protocol>, port: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24);
    match ip {
        None => {}
        Some(IpAddr::V4(ip)) => bytes.extend(ip.octets()),
        Some(IpAddr::V6(ip)) => bytes.extend(ip.octets()),
    }
    match protocol {
        None => {}
        Some(Protocol::Tcp) => bytes.extend([6, 0, 0, 0]),
        Some(Protocol::Udp) => bytes.extend([17, 0, 0, 0]),
    }
    let [high, low] = port.to_be_bytes();
    bytes.extend([high, low, 0, 0]);
    bytes
}

/// Runs nft with a script on its standard input.
fn nft(script: &str) -> Result<(), NetworkError> {
    let path =
        PROGRAMS.iter().map(Path::new).find(|path| path.exists()).ok_or(NetworkError::NoNft)?;
    let mut program = Program::new(path, Path::new("/"));
    program.argv = ["nft", "-f", "-"].map(OsStr::new).to_vec();
    program.stdin = script.as_bytes();
    program.timeout = Some(TIMEOUT);
    let finished = program.run()?;
    if finished.end == End::Exited(0) {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&finished.stderr);
    Err(NetworkError::Nft { message: message.split_whitespace().collect::<Vec<_>>().join(" ") })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const CONTAINER: Pair = Pair { v4: Ipv4Addr::new(10, 213, 9, 2), v6: Ipv6Addr::LOCALHOST };

    fn published(host_ip: Option<&str>) -> Published {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        Published { container_port: 80, protocol: Protocol::Udp, host_ip, host_port: 8081 }
    }

    #[test]
    fn elements_are_as_nft_shows_them() {
        // `nft --debug=netlink` shows the fields as numbers of this machine.
        let port = [published(Some("127.0.0.1"))];
        let element = elements((&port, CONTAINER)).next().unwrap();
        assert_eq!(element.map, "one4");
        assert_eq!(element.key, [127, 0, 0, 1, 17, 0, 0, 0, 0x1f, 0x91, 0, 0]);
        assert_eq!(element.data, [10, 213, 9, 2, 0, 80, 0, 0]);
    }

    #[test]
    fn a_port_is_published_in_both_families_unless_on_one_address() {
        let maps = |ip| -> Vec<_> {
            elements((&[published(ip)], CONTAINER)).map(|element| element.map).collect()
        };
        assert_eq!(maps(None), ["any4", "any6"]);
        assert_eq!(maps(Some("192.0.2.1")), ["one4"]);
        assert_eq!(maps(Some("fd00::1")), ["one6"]);
    }
}
