//! Choice of host ports to publish.
//!
//! No process listens on a published port: the packet filter redirects packets before they reach a
//! socket. So records keep the port from other jobs, and the choice keeps it from other programs: a
//! port that was not requested is chosen outside the kernel's ephemeral range.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use oci_hooks_files::fs::random_u64;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::privilege::host_network;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::error::NetworkError;
use super::firewall;
use super::outside::{UplinkRecord, listened_on};
use super::port::{PortMapping, PortProtocol, PublishedPort};
use super::record::NetworkRecords;

/// Minimum number of ports above the kernel's range; with fewer, the kernel's range is used.
const ENOUGH: u16 = 1000;

/// The kernel's default range of ephemeral ports.
const KERNEL: RangeInclusive<u16> = 32768..=60999;

/// Published ports of all networks.
#[derive(Debug, Default)]
pub struct TakenPorts {
    records: NetworkRecords,
    /// All published ports, if there are networks with unreadable records.
    unrecorded: Vec<PublishedPort>,
}

impl TakenPorts {
    /// Reads the ports from the records, and from the kernel if some records are unreadable.
    pub fn from_records(records: NetworkRecords) -> Result<Self, NetworkError> {
        let unrecorded = match records.unreadable.is_empty() {
            true => Vec::new(),
            false => firewall::list_published()?,
        };
        Ok(TakenPorts { records, unrecorded })
    }
}

/// Chooses free ports of the host. With an uplink, they are free in the host's own network
/// namespace, in which the uplink program listens. The caller holds the lock.
pub fn reserve(
    taken: &TakenPorts,
    uplink: Option<&UplinkRecord>,
    mappings: &[PortMapping],
) -> Result<Vec<PublishedPort>, NetworkError> {
    let Some(uplink) = uplink else { return choose(taken, None, mappings) };
    if let Some(host_ip) = mappings.iter().find_map(|mapping| uplink.unavailable_address(mapping)) {
        return Err(NetworkError::OnlyIpv4 { host_ip });
    }
    host_network::run(|| {
        check_rights(mappings)?;
        choose(taken, Some(uplink), mappings)
    })
}

/// Checks that each mapping with host ports has one that is not reserved for root in the calling thread's network
/// namespace.
pub fn check_rights(mappings: &[PortMapping]) -> Result<(), NetworkError> {
    let Some(first) = first_unprivileged_port() else { return Ok(()) };
    for PortMapping { host_ports, protocol, .. } in mappings {
        if let Some(ports) = host_ports.as_ref().filter(|ports| *ports.end() < first) {
            let port = *ports.start();
            return Err(NetworkError::RootsPort { port, protocol: *protocol, first });
        }
    }
    Ok(())
}

/// Returns the first port that all users may use, if the kernel reports it.
fn first_unprivileged_port() -> Option<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok()?;
    text.trim().parse().ok()
}

fn choose(
    taken: &TakenPorts,
    uplink: Option<&UplinkRecord>,
    mappings: &[PortMapping],
) -> Result<Vec<PublishedPort>, NetworkError> {
    let mut chosen: Vec<PublishedPort> = Vec::with_capacity(mappings.len());
    for mapping in mappings {
        let among = PortConstraints { taken, chosen: &chosen, uplink };
        let port = match &mapping.host_ports {
            Some(ports) => find_first_free(ports.clone(), mapping, among)?,
            None => find_random_free(mapping, among)?,
        };
        chosen.push(published_port(mapping, port));
    }
    Ok(chosen)
}

fn published_port(mapping: &PortMapping, host_port: u16) -> PublishedPort {
    let PortMapping { host_ip, container_port, protocol, .. } = *mapping;
    PublishedPort { container_port, protocol, host_ip, host_port }
}

/// Constraints for choosing a port.
#[derive(Clone, Copy)]
struct PortConstraints<'a> {
    taken: &'a TakenPorts,
    chosen: &'a [PublishedPort],
    uplink: Option<&'a UplinkRecord>,
}

fn find_first_free(
    mut ports: RangeInclusive<u16>,
    mapping: &PortMapping,
    among: PortConstraints<'_>,
) -> Result<u16, NetworkError> {
    let first = *ports.start();
    for port in ports.by_ref() {
        if is_free(port, mapping, among)? {
            return Ok(port);
        }
    }
    let holder =
        job(&published_port(mapping, first), among).or_else(|| program(mapping.protocol, first));
    let PortMapping { host_ip, protocol, .. } = *mapping;
    Err(NetworkError::PortInUse { host_ip, port: first, protocol, holder })
}

fn find_random_free(
    mapping: &PortMapping,
    among: PortConstraints<'_>,
) -> Result<u16, NetworkError> {
    let kernel = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let ports = unassigned_ports(kernel.ok().and_then(|text| parse_range(&text)).unwrap_or(KERNEL));
    let count = u64::from(ports.end() - ports.start()) + 1;
    // A random start keeps jobs that start at once from trying the same ports.
    let start = random_u64() % count;
    for step in 0..count {
        let offset = u16::try_from((start + step) % count).expect("it is less than the count");
        let port = ports.start() + offset;
        if is_free(port, mapping, among)? {
            return Ok(port);
        }
    }
    Err(NetworkError::NoPort)
}

/// Returns the range of ports to choose from, given the kernel's ephemeral range.
fn unassigned_ports(kernel: RangeInclusive<u16>) -> RangeInclusive<u16> {
    match kernel.end().checked_add(1) {
        Some(above) if u16::MAX - above >= ENOUGH => above..=u16::MAX,
        _ => kernel,
    }
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    let range: RangeInclusive<u16> = first.parse().ok()?..=last.trim().parse().ok()?;
    (!range.is_empty()).then_some(range)
}

fn is_free(
    port: u16,
    mapping: &PortMapping,
    among: PortConstraints<'_>,
) -> Result<bool, NetworkError> {
    if job(&published_port(mapping, port), among).is_some() {
        return Ok(false);
    }
    let protocol = mapping.protocol;
    // One socket for both families would suffice, but not where IPv6 is disabled.
    let addresses = match (mapping.host_ip, among.uplink) {
        (Some(ip), _) => vec![ip],
        (None, Some(uplink)) => listened_on(None, uplink),
        (None, None) => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
    };
    for address in addresses {
        match try_bind(protocol, SocketAddr::new(address, port)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(false),
            // The start of a range; a range reserved for root as a whole was already rejected.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && among.uplink.is_some() => {
                return Ok(false);
            }
            Err(error) => match mapping.host_ip {
                Some(host_ip) if error.kind() == ErrorKind::AddrNotAvailable => {
                    return Err(NetworkError::HostAddress { host_ip });
                }
                None if address.is_ipv6() => {}
                _ => return Err(NetworkError::Bind { port, protocol, source: error }),
            },
        }
    }
    Ok(true)
}

/// Returns whether a port is in use in the calling thread's network namespace, on its address or loopback.
pub fn is_taken(port: &PublishedPort) -> bool {
    let address = port.host_ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
    try_bind(port.protocol, SocketAddr::new(address, port.host_port)).is_err()
}

/// Returns an error with the program that uses a port.
pub fn in_use_error(port: &PublishedPort) -> NetworkError {
    let PublishedPort { host_ip, host_port, protocol, .. } = *port;
    let holder = host_network::run(|| program(protocol, host_port));
    NetworkError::PortInUse { host_ip, port: host_port, protocol, holder }
}

fn try_bind(protocol: PortProtocol, address: SocketAddr) -> io::Result<()> {
    let (family, kind) = match (address, protocol) {
        (SocketAddr::V4(_), PortProtocol::Tcp) => (AddressFamily::INET, SocketType::STREAM),
        (SocketAddr::V4(_), PortProtocol::Udp) => (AddressFamily::INET, SocketType::DGRAM),
        (SocketAddr::V6(_), PortProtocol::Tcp) => (AddressFamily::INET6, SocketType::STREAM),
        (SocketAddr::V6(_), PortProtocol::Udp) => (AddressFamily::INET6, SocketType::DGRAM),
    };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        // A process being started may hold our IPv4 socket for a moment.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if protocol == PortProtocol::Tcp {
        // Recently closed connections do not count.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    Ok(net::bind(&socket, &address)?)
}

/// Returns the container that has published a port, if any.
fn job(wanted: &PublishedPort, among: PortConstraints<'_>) -> Option<String> {
    let PortConstraints { taken, chosen, uplink } = among;
    let clashes = |other: &PublishedPort| {
        (other.host_port, other.protocol) == (wanted.host_port, wanted.protocol)
            // The uplink forwards a port number to one container port, whatever the address.
            && (uplink.is_some()
                || other.host_ip == wanted.host_ip
                || other.host_ip.is_none()
                || wanted.host_ip.is_none())
    };
    if chosen.iter().any(clashes) {
        return Some("the same container".to_owned());
    }
    if taken.unrecorded.iter().any(clashes) {
        return Some("a network whose record cannot be read".to_owned());
    }
    taken.records.known.iter().find_map(|record| {
        let has = |published: &[PublishedPort]| published.iter().any(clashes);
        let endpoint = record.endpoints.iter().find(|endpoint| has(&endpoint.published))?;
        Some(format!("container {} of network {}", endpoint.name, record.id))
    })
}

/// Returns the program that uses a port in the calling thread's network namespace, if visible.
fn program(protocol: PortProtocol, port: u16) -> Option<String> {
    let sockets: Vec<_> = ["", "6"]
        .into_iter()
        .filter_map(|family| {
            fs::read_to_string(format!("/proc/thread-self/net/{protocol}{family}")).ok()
        })
        .flat_map(|table| sockets(&table, protocol, port))
        .collect();
    let entries = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.file_name());
    let mut pids = entries.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let holder = pids.find(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|file| fs::read_link(file.path()).ok())
            .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
    })?;
    let name = ProcessIdentity::of(holder)?.name()?;
    Some(format!("{name} (process {holder})"))
}

/// Returns the sockets bound to a port, named as in links of `/proc/PID/fd`, from a table such as `/proc/net/tcp`.
fn sockets(table: &str, protocol: PortProtocol, port: u16) -> Vec<String> {
    let suffix = format!(":{port:04X}");
    let lines = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect());
    lines
        .filter_map(|fields: Vec<_>| match (fields.get(1)?, fields.get(3)?, fields.get(9)?) {
            // State 0A is listening, which UDP does not have.
            (local, state, inode)
                if local.ends_with(&suffix)
                    && (protocol == PortProtocol::Udp || *state == "0A") =>
            {
                Some(format!("socket:[{inode}]"))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn mapping(text: &str) -> PortMapping {
        PortMapping::parse(text).unwrap().remove(0)
    }

    #[test]
    fn ephemeral_ports_of_the_kernel_are_avoided() {
        assert_eq!(unassigned_ports(KERNEL), 61000..=65535);
        assert_eq!(unassigned_ports(1024..=65535), 1024..=65535);
        assert_eq!(unassigned_ports(1024..=65000), 1024..=65000);
        assert_eq!(parse_range("32768\t60999\n"), Some(KERNEL));
        assert_eq!(parse_range("2 1"), None);
    }

    #[test]
    fn a_port_is_given_once() {
        let mappings: Vec<_> = ["80", "81", "82/udp"].map(mapping).into();
        let mut published = reserve(&TakenPorts::default(), None, &mappings).unwrap();
        published.sort_by_key(|published| (published.protocol, published.host_port));
        assert_ne!(published[0].host_port, published[1].host_port);
        let twice = vec![mappings[0].clone(), mapping(&format!("{}:80", published[0].host_port))];
        assert!(reserve(&TakenPorts::default(), None, &twice).is_ok());
    }

    #[test]
    fn owner_of_a_used_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let error =
            reserve(&TakenPorts::default(), None, &[mapping(&format!("{port}:80"))]).unwrap_err();
        let NetworkError::PortInUse { holder: Some(holder), .. } = &error else {
            panic!("{error}")
        };
        assert!(holder.ends_with(&format!("(process {})", std::process::id())), "{error}");
        // The next port of a range is used instead.
        let range = mapping(&format!("{port}-65535:80"));
        assert!(reserve(&TakenPorts::default(), None, &[range]).unwrap()[0].host_port > port);
    }

    #[test]
    fn unavailable_host_addresses_are_named() {
        let error =
            |text: &str| reserve(&TakenPorts::default(), None, &[mapping(text)]).unwrap_err();
        assert!(matches!(error("192.0.2.77::80"), NetworkError::HostAddress { .. }));
    }
}
