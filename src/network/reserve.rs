//! Ports of the host for those that are to be published.
//!
//! Nobody listens on a published port: the packet filter takes what comes before anybody can. So it
//! is a record that keeps it from other jobs, and the choice that keeps it from other programs: a
//! port that nobody asked for is taken from where the kernel does not take any for programs.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::error::NetworkError;
use super::firewall;
use super::outside::{UplinkRecord, listened_on};
use super::port::{PortMapping, Protocol, Published};
use super::record::Records;
use crate::sys::fs::random_u64;
use crate::sys::privilege::outside;

/// How many ports there have to be above those of the kernel; else it is its own that are taken.
const ENOUGH: u16 = 1000;

/// The ports that the kernel gives programs that ask for any, unless it is told otherwise.
const KERNEL: RangeInclusive<u16> = 32768..=60999;

/// What others have of the host.
#[derive(Debug, Default)]
pub struct Taken {
    records: Records,
    /// If there are networks whose records cannot be read, what anybody has published.
    unrecorded: Vec<Published>,
}

impl Taken {
    /// Returns what networks have by their records, or else by what the kernel says.
    pub fn by(records: Records) -> Result<Self, NetworkError> {
        let unrecorded = match records.unreadable.is_empty() {
            true => Vec::new(),
            false => firewall::published()?,
        };
        Ok(Taken { records, unrecorded })
    }
}

/// Chooses ports of the host that nobody has: of the real one, if a program leads from there. The lock is
/// held.
pub fn reserve(
    taken: &Taken,
    uplink: Option<&UplinkRecord>,
    mappings: &[PortMapping],
) -> Result<Vec<Published>, NetworkError> {
    let Some(uplink) = uplink else { return choose(taken, None, mappings) };
    if let Some(host_ip) = mappings.iter().find_map(|mapping| uplink.cannot_listen(mapping)) {
        return Err(NetworkError::OnlyIpv4 { host_ip });
    }
    outside::run(|| {
        check_rights(mappings)?;
        choose(taken, Some(uplink), mappings)
    })
}

/// Checks that none of these ports is root's alone, by what the calling thread's network namespace says.
pub fn check_rights(mappings: &[PortMapping]) -> Result<(), NetworkError> {
    let Some(first) = first_of_all() else { return Ok(()) };
    for PortMapping { host_ports, protocol, .. } in mappings {
        if let Some(ports) = host_ports.as_ref().filter(|ports| *ports.end() < first) {
            let port = *ports.start();
            return Err(NetworkError::RootsPort { port, protocol: *protocol, first });
        }
    }
    Ok(())
}

/// Returns the first port that all users may have; none if the kernel does not say.
fn first_of_all() -> Option<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok()?;
    text.trim().parse().ok()
}

fn choose(
    taken: &Taken,
    uplink: Option<&UplinkRecord>,
    mappings: &[PortMapping],
) -> Result<Vec<Published>, NetworkError> {
    let mut chosen: Vec<Published> = Vec::with_capacity(mappings.len());
    for mapping in mappings {
        let among = Among { taken, chosen: &chosen, uplink };
        let port = match &mapping.host_ports {
            Some(ports) => first_free(ports.clone(), mapping, among)?,
            None => any_free(mapping, among)?,
        };
        chosen.push(published(mapping, port));
    }
    Ok(chosen)
}

fn published(mapping: &PortMapping, host_port: u16) -> Published {
    let PortMapping { host_ip, container_port, protocol, .. } = *mapping;
    Published { container_port, protocol, host_ip, host_port }
}

/// What a port is chosen among.
#[derive(Clone, Copy)]
struct Among<'a> {
    taken: &'a Taken,
    /// What was chosen before it.
    chosen: &'a [Published],
    uplink: Option<&'a UplinkRecord>,
}

fn first_free(
    mut ports: RangeInclusive<u16>,
    mapping: &PortMapping,
    among: Among<'_>,
) -> Result<u16, NetworkError> {
    let first = *ports.start();
    for port in ports.by_ref() {
        if is_free(port, mapping, among)? {
            return Ok(port);
        }
    }
    let holder =
        job(&published(mapping, first), among).or_else(|| program(mapping.protocol, first));
    let PortMapping { host_ip, protocol, .. } = *mapping;
    Err(NetworkError::PortInUse { host_ip, port: first, protocol, holder })
}

fn any_free(mapping: &PortMapping, among: Among<'_>) -> Result<u16, NetworkError> {
    let kernel = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let ports = nobodys(kernel.ok().and_then(|text| parse_range(&text)).unwrap_or(KERNEL));
    let count = u64::from(ports.end() - ports.start()) + 1;
    // Jobs that start at once would all try the same ones otherwise.
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

/// Returns the ports to choose from, if these are the kernel's own.
fn nobodys(kernel: RangeInclusive<u16>) -> RangeInclusive<u16> {
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

fn is_free(port: u16, mapping: &PortMapping, among: Among<'_>) -> Result<bool, NetworkError> {
    if job(&published(mapping, port), among).is_some() {
        return Ok(false);
    }
    let protocol = mapping.protocol;
    // One socket for both families would do, but not where IPv6 is turned off.
    let addresses = match (mapping.host_ip, among.uplink) {
        (Some(ip), _) => vec![ip],
        (None, Some(uplink)) => listened_on(None, uplink),
        (None, None) => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
    };
    for address in addresses {
        match bind(protocol, SocketAddr::new(address, port)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(false),
            // The first ones of a range; of what is root's alone has been told.
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

/// Returns whether somebody has a port in the calling thread's network namespace, on its address or loopback.
pub fn is_taken(port: &Published) -> bool {
    let address = port.host_ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
    bind(port.protocol, SocketAddr::new(address, port.host_port)).is_err()
}

/// Returns the error that says who has a port.
pub fn in_use(port: &Published) -> NetworkError {
    let Published { host_ip, host_port, protocol, .. } = *port;
    let holder = outside::run(|| program(protocol, host_port));
    NetworkError::PortInUse { host_ip, port: host_port, protocol, holder }
}

fn bind(protocol: Protocol, address: SocketAddr) -> io::Result<()> {
    let (family, kind) = match (address, protocol) {
        (SocketAddr::V4(_), Protocol::Tcp) => (AddressFamily::INET, SocketType::STREAM),
        (SocketAddr::V4(_), Protocol::Udp) => (AddressFamily::INET, SocketType::DGRAM),
        (SocketAddr::V6(_), Protocol::Tcp) => (AddressFamily::INET6, SocketType::STREAM),
        (SocketAddr::V6(_), Protocol::Udp) => (AddressFamily::INET6, SocketType::DGRAM),
    };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        // A process that is being started may hold our socket of IPv4 for a moment.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if protocol == Protocol::Tcp {
        // What was closed a minute ago does not count.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    Ok(net::bind(&socket, &address)?)
}

/// Returns which container has published a port already.
fn job(wanted: &Published, among: Among<'_>) -> Option<String> {
    let Among { taken, chosen, uplink } = among;
    let clashes = |other: &Published| {
        (other.host_port, other.protocol) == (wanted.host_port, wanted.protocol)
            // What a program leads here it leads to one port, whatever address it comes by.
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
        let has = |published: &[Published]| published.iter().any(clashes);
        let endpoint = record.endpoints.iter().find(|endpoint| has(&endpoint.published))?;
        Some(format!("container {} of network {}", endpoint.name, record.id))
    })
}

/// Returns which program of the calling thread's network namespace has a port, if it can be seen.
fn program(protocol: Protocol, port: u16) -> Option<String> {
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
    let name = fs::read_to_string(format!("/proc/{holder}/comm")).ok()?;
    Some(format!("{} (process {holder})", name.trim()))
}

/// Returns the sockets that a port is bound to, as links in `/proc/PID/fd` name them, from a table
/// as `/proc/net/tcp`.
fn sockets(table: &str, protocol: Protocol, port: u16) -> Vec<String> {
    let suffix = format!(":{port:04X}");
    let lines = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect());
    lines
        .filter_map(|fields: Vec<_>| match (fields.get(1)?, fields.get(3)?, fields.get(9)?) {
            // 0A is a socket that listens; UDP has none.
            (local, state, inode)
                if local.ends_with(&suffix) && (protocol == Protocol::Udp || *state == "0A") =>
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
    fn ports_that_the_kernel_gives_to_programs_are_left_alone() {
        assert_eq!(nobodys(KERNEL), 61000..=65535);
        assert_eq!(nobodys(1024..=65535), 1024..=65535);
        assert_eq!(nobodys(1024..=65000), 1024..=65000);
        assert_eq!(parse_range("32768\t60999\n"), Some(KERNEL));
        assert_eq!(parse_range("2 1"), None);
    }

    #[test]
    fn a_port_is_given_once() {
        let mappings: Vec<_> = ["80", "81", "82/udp"].map(mapping).into();
        let mut published = reserve(&Taken::default(), None, &mappings).unwrap();
        published.sort_by_key(|published| (published.protocol, published.host_port));
        assert_ne!(published[0].host_port, published[1].host_port);
        let twice = vec![mappings[0].clone(), mapping(&format!("{}:80", published[0].host_port))];
        assert!(reserve(&Taken::default(), None, &twice).is_ok());
    }

    #[test]
    fn who_has_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let error =
            reserve(&Taken::default(), None, &[mapping(&format!("{port}:80"))]).unwrap_err();
        let NetworkError::PortInUse { holder: Some(holder), .. } = &error else {
            panic!("{error}")
        };
        assert!(holder.ends_with(&format!("(process {})", std::process::id())), "{error}");
        // The next one of a range is as good.
        let range = mapping(&format!("{port}-65535:80"));
        assert!(reserve(&Taken::default(), None, &[range]).unwrap()[0].host_port > port);
    }

    #[test]
    fn addresses_that_cannot_be_published_on_are_told() {
        let error = |text: &str| reserve(&Taken::default(), None, &[mapping(text)]).unwrap_err();
        assert!(matches!(error("192.0.2.77::80"), NetworkError::HostAddress { .. }));
    }
}
