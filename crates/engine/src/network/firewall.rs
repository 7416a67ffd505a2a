//! Firewall between jobs, the host and the world: one nftables table with the same rules for all networks,
//! which exists as long as any network does. Published ports and uplinks are elements of its sets and maps,
//! and the permissions of a network are the group of its interface, which is removed with it.
//!
//! iptables' chain `FORWARD` is shared: Docker and ufw make it drop packets that no rule accepts. Rules at
//! its end accept the packets of jobs, after all rules of its owners and of the admin. Our own table still
//! rejects packets to destinations that jobs must not reach. A chain whose policy is not to drop gets no
//! rule.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use oci_hooks_files::process::{ChildProgram, ProgramEnd};
use oci_hooks_host::metadata::METADATA;

use super::error::NetworkError;
use super::interface::{InterfaceName, LINK};
use super::nftables::{ChainRule, INET, IPV4, IPV6, Nftables, SetElement};
use super::port::{PortProtocol, PublishedPort};
use super::subnet::{AddressPair, AddressPlan};

pub const TABLE: &str = "oci_hooks";
const RULES: &str = include_str!("rules.nft");

/// Version of the rules, incremented when they change: a table of another version is replaced.
const VERSION: u32 = 4;

/// Chain that every version of the table has.
const ANY_VERSION: &str = "input";

/// Chain without rules, which marks a complete table: a process may be killed after it has loaded
/// the rules, and before it has added all networks.
const COMPLETE: &str = "complete";

/// Set of networks that need the table.
const NETWORKS: &str = "networks";

/// Group of a network's interface on the host if containers may use services of the host.
pub const HOST_ACCESS: u32 = 1;

/// Sets whose keys begin with the name of a network's interface.
const OF_LINKS: [&str; 3] = ["uplinks", "hosts4", "hosts6"];

const PORTS: [&str; 4] = ["any4", "any6", "one4", "one6"];

/// Maximum number of attempts at changing tables, because other processes may change them at the
/// same time.
const TRIES: u32 = 100;
const TRIES_OF_NFT: u32 = 3;

/// Paths of nft; the `PATH` of a service is not always complete.
const PROGRAMS: [&str; 4] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft", "/usr/local/sbin/nft"];
const TIMEOUT: Duration = Duration::from_secs(30);

/// Published ports of a container, and its addresses.
pub type PublishTarget<'a> = (&'a [PublishedPort], AddressPair);

/// A network's entries in the sets and maps of the table.
pub struct TableMember<'a> {
    /// Host's end of the network's link.
    pub link: &'a InterfaceName,
    /// Interfaces through which packets leave the host, if they need to be named.
    pub uplinks: &'a [InterfaceName],
    /// Addresses that containers must not reach through the uplinks: those of the host, if the
    /// table is in a rootless user's network namespace.
    pub hosts: &'a [IpAddr],
    pub containers: Vec<PublishTarget<'a>>,
}

impl TableMember<'_> {
    fn elements(&self) -> Vec<SetElement> {
        let element = |set, names: &[&InterfaceName]| {
            let key = names.iter().flat_map(|name| name.to_padded()).collect();
            SetElement { set, key, data: Vec::new() }
        };
        let uplinks = self.uplinks.iter().map(|uplink| element("uplinks", &[self.link, uplink]));
        let hosts = self.hosts.iter().map(|host| {
            let set = if host.is_ipv4() { "hosts4" } else { "hosts6" };
            let key = self.link.to_padded().into_iter().chain(encode_ip(Some(*host))).collect();
            SetElement { set, key, data: Vec::new() }
        });
        let ports = self.containers.iter().copied().flat_map(elements);
        std::iter::once(element(NETWORKS, &[self.link]))
            .chain(uplinks)
            .chain(hosts)
            .chain(ports)
            .collect()
    }
}

/// Adds a network to the table. If the table is missing, as after a boot, an upgrade or a restart of the host's
/// firewall, creates it with the elements of all networks. The caller holds the lock.
pub fn enter(network: &TableMember<'_>, others: &[TableMember<'_>]) -> Result<(), NetworkError> {
    let nftables = Nftables::open().map_err(to_network_error("query tables"))?;
    let mut tries = 0;
    loop {
        match try_to_enter(&nftables, network, others) {
            // Networks of another run directory come and go without our lock: the last one removes the table.
            Err(NetworkError::Firewall { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
            Err(NetworkError::Nft { .. }) if tries < TRIES_OF_NFT => {}
            result => return result,
        }
        tries += 1;
    }
}

fn try_to_enter(
    nftables: &Nftables,
    network: &TableMember<'_>,
    others: &[TableMember<'_>],
) -> Result<(), NetworkError> {
    let version = format!("version_{VERSION}");
    let is_there =
        nftables.has_chain(INET, TABLE, &version).map_err(to_network_error("query tables"))?;
    let mut script = if is_there { String::new() } else { rules(nftables, &version)? };
    script += &missing_of_iptables(nftables).map_err(to_network_error("query tables"))?;
    if !script.is_empty() {
        // nft continues when this process is killed. Its script fails once this network, and with it the
        // chain, has been removed: the kernel applies a script as a whole or not at all.
        let chain = network.link.as_str();
        nftables.add_chain(TABLE, chain).map_err(to_network_error("load rules"))?;
        nft(&format!("flush chain inet {TABLE} {chain}\n{script}"))?;
    }
    let mut elements = network.elements();
    let is_complete =
        nftables.has_chain(INET, TABLE, COMPLETE).map_err(to_network_error("query tables"))?;
    if !is_complete {
        elements.extend(others.iter().flat_map(TableMember::elements));
    }
    nftables.add(TABLE, &elements).map_err(to_network_error("add a network"))?;
    if is_complete {
        return Ok(());
    }
    nftables.add_chain(TABLE, COMPLETE).map_err(to_network_error("add networks"))
}

/// Returns the commands that create the table, replacing one of another version.
fn rules(nftables: &Nftables, version: &str) -> Result<String, NetworkError> {
    let outdated =
        nftables.has_chain(INET, TABLE, ANY_VERSION).map_err(to_network_error("query tables"))?;
    let before = if outdated { "delete" } else { "flush" };
    let addresses = |wanted: fn(&IpAddr) -> bool| {
        let addresses = METADATA.iter().map(|metadata| metadata.address).filter(wanted);
        addresses.map(|address| address.to_string()).collect::<Vec<_>>().join(", ")
    };
    let metadata4 = addresses(|ip| matches!(ip, IpAddr::V4(ip) if !ip.is_link_local()));
    let rules = RULES
        .replace("version_VERSION", version)
        .replace("METADATA4", &metadata4)
        .replace("METADATA6", &addresses(IpAddr::is_ipv6));
    Ok(format!("{before} table inet {TABLE}\n{rules}"))
}

/// Removes a network with its elements from the table; with the last network, also the table and our rules in
/// other tables. Missing elements are no error. The caller holds the lock.
///
/// The kernel needs 5 to 15 ms more: dropping the returned value waits for that.
pub fn remove_member(network: &TableMember<'_>) -> Result<Nftables, NetworkError> {
    let nftables = Nftables::open().map_err(to_network_error("query tables"))?;
    let because = || to_network_error("remove a network");
    nftables.delete_chain(TABLE, network.link.as_str()).map_err(because())?;
    nftables.delete(TABLE, &network.elements()).map_err(because())?;
    for _ in 0..TRIES {
        if remove_unused(&nftables).map_err(because())? {
            return Ok(nftables);
        }
    }
    Err(because()(io::Error::other("other programs keep changing the tables")))
}

/// Removes a network as [`remove_member`] does, if only its link and addresses are known.
pub fn leave_unrecorded(link: &InterfaceName, plan: AddressPlan) -> Result<Nftables, NetworkError> {
    let because = || to_network_error("remove a network");
    let nftables = Nftables::open().map_err(because())?;
    let mut elements = Vec::new();
    for set in OF_LINKS {
        let of_links = nftables.elements(TABLE, set).map_err(because())?;
        let of_link = |element: &SetElement| element.key.starts_with(&link.to_padded());
        elements.extend(of_links.into_iter().filter(of_link));
    }
    for map in PORTS {
        let ports = nftables.elements(TABLE, map).map_err(because())?;
        elements
            .extend(ports.into_iter().filter(|port| target(port).is_some_and(|ip| plan.has(ip))));
    }
    nftables.delete(TABLE, &elements).map_err(because())?;
    remove_member(&TableMember { link, uplinks: &[], hosts: &[], containers: Vec::new() })
}

/// Returns the ports published by all networks, recorded or not.
pub fn list_published() -> Result<Vec<PublishedPort>, NetworkError> {
    let because = || to_network_error("list published ports");
    let nftables = Nftables::open().map_err(because())?;
    let mut all = Vec::new();
    for map in PORTS {
        let elements = nftables.elements(TABLE, map).map_err(because())?;
        all.extend(elements.iter().filter_map(parse_element));
    }
    Ok(all)
}

/// Returns the address to which a published port leads.
fn target(port: &SetElement) -> Option<IpAddr> {
    match port.set {
        "any4" | "one4" => Some(port.data.first_chunk::<4>().copied()?.into()),
        _ => Some(port.data.first_chunk::<16>().copied()?.into()),
    }
}

/// Parses an element of the maps of published ports, as [`elements`] returns it.
fn parse_element(port: &SetElement) -> Option<PublishedPort> {
    let (host_ip, rest): (Option<IpAddr>, &[u8]) = match port.set {
        "one4" => port.key.split_first_chunk::<4>().map(|(ip, rest)| (Some((*ip).into()), rest))?,
        "one6" => {
            port.key.split_first_chunk::<16>().map(|(ip, rest)| (Some((*ip).into()), rest))?
        }
        _ => (None, &port.key),
    };
    let &[protocol, 0, 0, 0, high, low, ..] = rest else { return None };
    let protocol = if protocol == 17 { PortProtocol::Udp } else { PortProtocol::Tcp };
    let &[.., to_high, to_low, 0, 0] = &port.data[..] else { return None };
    let container_port = u16::from_be_bytes([to_high, to_low]);
    Some(PublishedPort {
        container_port,
        protocol,
        host_ip,
        host_port: u16::from_be_bytes([high, low]),
    })
}

/// Removes our table and rules unless a network exists. Returns false if tables changed meanwhile,
/// so that the caller has to try again: networks of other run directories come and go, and other
/// programs change their tables.
fn remove_unused(nftables: &Nftables) -> io::Result<bool> {
    let now = nftables.generation()?;
    if !nftables.is_empty(TABLE, NETWORKS)? {
        return Ok(true);
    }
    let table = nftables.has_table(TABLE)?.then_some(TABLE);
    let rules = rules_of_iptables(nftables)?;
    if table.is_none() && rules.is_empty() {
        return Ok(true);
    }
    nftables.remove(&now, table, &rules)
}

/// Publishes ports: adds elements to the maps of the table.
pub fn publish(destination: PublishTarget<'_>) -> Result<(), NetworkError> {
    change(destination, |nftables, elements| nftables.add(TABLE, elements))
        .map_err(to_network_error("publish ports"))
}

/// Withdraws published ports. A port that is not published is no error: a killed process may have withdrawn it.
pub fn withdraw(destination: PublishTarget<'_>) -> Result<(), NetworkError> {
    change(destination, |nftables, elements| nftables.delete(TABLE, elements))
        .map_err(to_network_error("withdraw published ports"))
}

fn change(
    destination: PublishTarget<'_>,
    change: impl FnOnce(&Nftables, &[SetElement]) -> io::Result<()>,
) -> io::Result<()> {
    if destination.0.is_empty() {
        return Ok(());
    }
    change(&Nftables::open()?, &elements(destination).collect::<Vec<_>>())
}

pub(super) fn to_network_error(action: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
    move |source| NetworkError::Firewall { action, source }
}

fn elements((ports, container): PublishTarget<'_>) -> impl Iterator<Item = SetElement> {
    ports.iter().flat_map(move |port| {
        let element = |set, ip: Option<IpAddr>, to: IpAddr| SetElement {
            set,
            key: join_fields(ip, Some(port.protocol), port.host_port),
            data: join_fields(Some(to), None, port.container_port),
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

/// Joins fields as the kernel does, each padded to four bytes.
fn join_fields(ip: Option<IpAddr>, protocol: Option<PortProtocol>, port: u16) -> Vec<u8> {
    let mut bytes = encode_ip(ip);
    match protocol {
        None => {}
        Some(PortProtocol::Tcp) => bytes.extend([6, 0, 0, 0]),
        Some(PortProtocol::Udp) => bytes.extend([17, 0, 0, 0]),
    }
    let [high, low] = port.to_be_bytes();
    bytes.extend([high, low, 0, 0]);
    bytes
}

fn encode_ip(ip: Option<IpAddr>) -> Vec<u8> {
    match ip {
        None => Vec::new(),
        Some(IpAddr::V4(ip)) => ip.octets().to_vec(),
        Some(IpAddr::V6(ip)) => ip.octets().to_vec(),
    }
}

/// Runs nft with a script on stdin, and returns its output.
pub fn nft(script: &str) -> Result<String, NetworkError> {
    let path =
        PROGRAMS.iter().map(Path::new).find(|path| path.exists()).ok_or(NetworkError::NoNft)?;
    let mut program = ChildProgram::new(path, Path::new("/"));
    program.argv = ["nft", "--handle", "-f", "-"].map(OsStr::new).to_vec();
    program.stdin = script.as_bytes();
    program.timeout = Some(TIMEOUT);
    let finished = program.run()?;
    if finished.end == ProgramEnd::Exited(0) {
        return Ok(String::from_utf8_lossy(&finished.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&finished.stderr);
    Err(NetworkError::Nft { message: message.split_whitespace().collect::<Vec<_>>().join(" ") })
}

/// Table of iptables that filters packets.
const FILTER: &str = "filter";
/// Chain of iptables for forwarded packets.
const CHAIN: &str = "FORWARD";

/// Comment that distinguishes our rules from an admin's for the same interfaces. iptables shows it.
const COMMENT: &str = "oci-hooks";

/// A rule with its family, table and chain.
pub type LocatedRule = (u8, &'static str, &'static str, ChainRule);

/// Returns nft commands that add our missing rules to iptables' chain.
fn missing_of_iptables(nftables: &Nftables) -> io::Result<String> {
    let mut script = String::new();
    for (family, name) in [(IPV4, "ip"), (IPV6, "ip6")] {
        if !nftables.drops(family, FILTER, CHAIN)? || !find_own_rules(nftables, family)?.is_empty()
        {
            continue;
        }
        for side in ["iifname", "oifname"] {
            let rule = format!("{side} \"{LINK}*\" accept comment \"{COMMENT}\"");
            writeln!(script, "add rule {name} {FILTER} {CHAIN} {rule}").expect("a string takes it");
        }
    }
    Ok(script)
}

/// Returns our rules in iptables' chain.
fn rules_of_iptables(nftables: &Nftables) -> io::Result<Vec<LocatedRule>> {
    let mut rules = find_own_rules(nftables, IPV4)?;
    rules.extend(find_own_rules(nftables, IPV6)?);
    Ok(rules)
}

fn find_own_rules(nftables: &Nftables, family: u8) -> io::Result<Vec<LocatedRule>> {
    let has = |rule: &ChainRule, word: &str| {
        rule.content.windows(word.len()).any(|bytes| bytes == word.as_bytes())
    };
    let rules = nftables.rules(family, FILTER, CHAIN)?;
    let rules_of_iptables = rules.into_iter().filter(|rule| has(rule, LINK) && has(rule, COMMENT));
    Ok(rules_of_iptables.map(|rule| (family, FILTER, CHAIN, rule)).collect())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const CONTAINER: AddressPair =
        AddressPair { v4: Ipv4Addr::new(10, 213, 9, 2), v6: Ipv6Addr::LOCALHOST };

    fn published_port(host_ip: Option<&str>) -> PublishedPort {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        PublishedPort { container_port: 80, protocol: PortProtocol::Udp, host_ip, host_port: 8081 }
    }

    #[test]
    fn set_elements_match_the_notation_of_nft() {
        // `nft --debug=netlink` shows the fields as numbers of this machine.
        let port = [published_port(Some("127.0.0.1"))];
        let element = elements((&port, CONTAINER)).next().unwrap();
        assert_eq!(element.set, "one4");
        assert_eq!(element.key, [127, 0, 0, 1, 17, 0, 0, 0, 0x1f, 0x91, 0, 0]);
        assert_eq!(element.data, [10, 213, 9, 2, 0, 80, 0, 0]);
    }

    #[test]
    fn element_is_parsed_to_its_port_and_target() {
        for host_ip in [None, Some("127.0.0.1"), Some("fd00::1")] {
            let port = [published_port(host_ip)];
            for element in elements((&port, CONTAINER)) {
                assert_eq!(parse_element(&element).as_ref(), Some(&port[0]), "{element:?}");
                let addresses = [CONTAINER.v4.into(), CONTAINER.v6.into()];
                assert!(target(&element).is_some_and(|ip| addresses.contains(&ip)), "{element:?}");
            }
        }
    }

    #[test]
    fn port_is_published_for_both_families_unless_bound_to_one() {
        let maps = |ip| -> Vec<_> {
            elements((&[published_port(ip)], CONTAINER)).map(|element| element.set).collect()
        };
        assert_eq!(maps(None), ["any4", "any6"]);
        assert_eq!(maps(Some("192.0.2.1")), ["one4"]);
        assert_eq!(maps(Some("fd00::1")), ["one6"]);
    }
}
