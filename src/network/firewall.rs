//! What passes between jobs, the host and the world: one table of rules for nft, the same for all
//! networks, which is there as long as there is a network. Published ports and ways out are elements of
//! its sets and maps, and what a network may is the group of its interface: that goes with it.
//!
//! Others share iptables' chain `FORWARD` with us: Docker and ufw have it drop what no rule of it accepts.
//! Rules at its end accept the packets of jobs, after all rules of its owners and of the admin. Our own table
//! still refuses what jobs must not reach. If the policy of the chain is not to drop, it gets no rule.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::error::NetworkError;
use super::interface::{Interface, LINK};
use super::nftables::{Element, INET, IPV4, IPV6, Nftables, Rule};
use super::port::{Protocol, Published};
use super::subnet::{Pair, Plan};
use crate::sys::metadata::METADATA;
use crate::sys::process::{End, Program};

pub const TABLE: &str = "oci_hooks";
const RULES: &str = include_str!("rules.nft");

/// Counted up when the rules change: they are loaded anew then.
const VERSION: u32 = 4;

/// A chain that every version of the table has.
const ANY_VERSION: &str = "input";

/// A chain without rules: all networks that are there have been entered. Whoever loaded the rules may have
/// been killed before that.
const COMPLETE: &str = "complete";

/// The set of those who need the table.
const NETWORKS: &str = "networks";

/// The group of a network's interface on the host if containers may use services of the host.
pub const HOST_ACCESS: u32 = 1;

/// The sets whose elements begin with the interface of a network.
const OF_LINKS: [&str; 3] = ["uplinks", "hosts4", "hosts6"];

/// The maps of published ports.
const PORTS: [&str; 4] = ["any4", "any6", "one4", "one6"];

/// How often a change is tried again that somebody else's was quicker than.
const TRIES: u32 = 100;
const TRIES_OF_NFT: u32 = 3;

/// Where nft is; `PATH` of a service is not always what it should be.
const PROGRAMS: [&str; 4] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft", "/usr/local/sbin/nft"];
const TIMEOUT: Duration = Duration::from_secs(30);

/// A container's addresses, and the ports to reach them by.
pub type Destination<'a> = (&'a [Published], Pair);

/// What a network has in the table.
pub struct Member<'a> {
    /// The host's end of its link.
    pub link: &'a Interface,
    /// By which interfaces it gets out of the host, of those that need to be named.
    pub uplinks: &'a [Interface],
    /// Addresses beyond its uplinks that containers must not reach: those of the real host, if this one is a
    /// namespace of a user's own.
    pub hosts: &'a [IpAddr],
    pub containers: Vec<Destination<'a>>,
}

impl Member<'_> {
    fn elements(&self) -> Vec<Element> {
        let element = |set, names: &[&Interface]| {
            let key = names.iter().flat_map(|name| name.padded()).collect();
            Element { set, key, data: Vec::new() }
        };
        let uplinks = self.uplinks.iter().map(|uplink| element("uplinks", &[self.link, uplink]));
        let hosts = self.hosts.iter().map(|host| {
            let set = if host.is_ipv4() { "hosts4" } else { "hosts6" };
            let key = self.link.padded().into_iter().chain(joined_ip(Some(*host))).collect();
            Element { set, key, data: Vec::new() }
        });
        let ports = self.containers.iter().copied().flat_map(elements);
        std::iter::once(element(NETWORKS, &[self.link]))
            .chain(uplinks)
            .chain(hosts)
            .chain(ports)
            .collect()
    }
}

/// Enters a network. Makes the table unless it is there, with what the others have in it: after a boot,
/// a new version, or a firewall of the host that starts anew, there is none. The lock is held.
pub fn enter(network: &Member<'_>, others: &[Member<'_>]) -> Result<(), NetworkError> {
    let nftables = Nftables::open().map_err(because("ask"))?;
    let mut tries = 0;
    loop {
        match try_to_enter(&nftables, network, others) {
            // Networks of another run directory come and go without our lock: the last one takes the
            // table with it.
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
    network: &Member<'_>,
    others: &[Member<'_>],
) -> Result<(), NetworkError> {
    let version = format!("version_{VERSION}");
    let is_there = nftables.has_chain(INET, TABLE, &version).map_err(because("ask"))?;
    let mut script = if is_there { String::new() } else { rules(nftables, &version)? };
    script += &missing_of_iptables(nftables).map_err(because("ask"))?;
    if !script.is_empty() {
        // nft goes on when we are killed. What it does then comes to nothing once this network was taken
        // out, and its chain with it: the kernel takes all of the script or nothing.
        let chain = network.link.as_str();
        nftables.add_chain(TABLE, chain).map_err(because("load rules"))?;
        nft(&format!("flush chain inet {TABLE} {chain}\n{script}"))?;
    }
    let mut elements = network.elements();
    let is_complete = nftables.has_chain(INET, TABLE, COMPLETE).map_err(because("ask"))?;
    if !is_complete {
        elements.extend(others.iter().flat_map(Member::elements));
    }
    nftables.add(TABLE, &elements).map_err(because("enter a network"))?;
    if is_complete {
        return Ok(());
    }
    nftables.add_chain(TABLE, COMPLETE).map_err(because("enter networks"))
}

/// Returns the commands that make the table, in place of one of another version.
fn rules(nftables: &Nftables, version: &str) -> Result<String, NetworkError> {
    let outdated = nftables.has_chain(INET, TABLE, ANY_VERSION).map_err(because("ask"))?;
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

/// Takes a network out, whatever it has in the table, and with the last one the table and all that is
/// ours in other ones. That nothing is there is fine. The lock is held.
///
/// The kernel has 5 to 15 ms left to do: what is returned waits for that when it is dropped.
pub fn leave(network: &Member<'_>) -> Result<Nftables, NetworkError> {
    let nftables = Nftables::open().map_err(because("ask"))?;
    let because = || because("take a network out");
    nftables.delete_chain(TABLE, network.link.as_str()).map_err(because())?;
    nftables.delete(TABLE, &network.elements()).map_err(because())?;
    for _ in 0..TRIES {
        if remove_unused(&nftables).map_err(because())? {
            return Ok(nftables);
        }
    }
    Err(because()(io::Error::other("others change it all the time")))
}

/// Takes a network out as [`leave`] does, of which nobody knows more than its link and addresses.
pub fn leave_unrecorded(link: &Interface, plan: Plan) -> Result<Nftables, NetworkError> {
    let because = || because("take a network out");
    let nftables = Nftables::open().map_err(because())?;
    let mut elements = Vec::new();
    for set in OF_LINKS {
        let of_links = nftables.elements(TABLE, set).map_err(because())?;
        let of_link = |element: &Element| element.key.starts_with(&link.padded());
        elements.extend(of_links.into_iter().filter(of_link));
    }
    for map in PORTS {
        let ports = nftables.elements(TABLE, map).map_err(because())?;
        elements
            .extend(ports.into_iter().filter(|port| target(port).is_some_and(|ip| plan.has(ip))));
    }
    nftables.delete(TABLE, &elements).map_err(because())?;
    leave(&Member { link, uplinks: &[], hosts: &[], containers: Vec::new() })
}

/// Returns the ports that anybody of ours has published, whether a record says so or not.
pub fn published() -> Result<Vec<Published>, NetworkError> {
    let because = || because("ask for published ports");
    let nftables = Nftables::open().map_err(because())?;
    let mut all = Vec::new();
    for map in PORTS {
        let elements = nftables.elements(TABLE, map).map_err(because())?;
        all.extend(elements.iter().filter_map(separated));
    }
    Ok(all)
}

/// Returns the address that a published port leads to.
fn target(port: &Element) -> Option<IpAddr> {
    match port.set {
        "any4" | "one4" => Some(port.data.first_chunk::<4>().copied()?.into()),
        _ => Some(port.data.first_chunk::<16>().copied()?.into()),
    }
}

/// Takes apart what [`elements`] put together.
fn separated(port: &Element) -> Option<Published> {
    let (host_ip, rest): (Option<IpAddr>, &[u8]) = match port.set {
        "one4" => port.key.split_first_chunk::<4>().map(|(ip, rest)| (Some((*ip).into()), rest))?,
        "one6" => {
            port.key.split_first_chunk::<16>().map(|(ip, rest)| (Some((*ip).into()), rest))?
        }
        _ => (None, &port.key),
    };
    let &[protocol, 0, 0, 0, high, low, ..] = rest else { return None };
    let protocol = if protocol == 17 { Protocol::Udp } else { Protocol::Tcp };
    let &[.., to_high, to_low, 0, 0] = &port.data[..] else { return None };
    let container_port = u16::from_be_bytes([to_high, to_low]);
    Some(Published {
        container_port,
        protocol,
        host_ip,
        host_port: u16::from_be_bytes([high, low]),
    })
}

/// Removes everything of ours unless there is a network. Returns whether that could be told: networks of
/// other run directories come and go meanwhile, and other programs change tables of their own.
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
pub fn publish(destination: Destination<'_>) -> Result<(), NetworkError> {
    change(destination, |nftables, elements| nftables.add(TABLE, elements))
        .map_err(because("publish ports"))
}

/// Takes published ports back. One that is not there is no error: nobody knows how far a killed
/// process came.
pub fn withdraw(destination: Destination<'_>) -> Result<(), NetworkError> {
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

pub(super) fn because(action: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
    move |source| NetworkError::Firewall { action, source }
}

fn elements((ports, container): Destination<'_>) -> impl Iterator<Item = Element> {
    ports.iter().flat_map(move |port| {
        let element = |set, ip: Option<IpAddr>, to: IpAddr| Element {
            set,
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
    let mut bytes = joined_ip(ip);
    match protocol {
        None => {}
        Some(Protocol::Tcp) => bytes.extend([6, 0, 0, 0]),
        Some(Protocol::Udp) => bytes.extend([17, 0, 0, 0]),
    }
    let [high, low] = port.to_be_bytes();
    bytes.extend([high, low, 0, 0]);
    bytes
}

fn joined_ip(ip: Option<IpAddr>) -> Vec<u8> {
    match ip {
        None => Vec::new(),
        Some(IpAddr::V4(ip)) => ip.octets().to_vec(),
        Some(IpAddr::V6(ip)) => ip.octets().to_vec(),
    }
}

/// Runs nft with a script on its standard input, and returns what it prints.
pub fn nft(script: &str) -> Result<String, NetworkError> {
    let path =
        PROGRAMS.iter().map(Path::new).find(|path| path.exists()).ok_or(NetworkError::NoNft)?;
    let mut program = Program::new(path, Path::new("/"));
    program.argv = ["nft", "--handle", "-f", "-"].map(OsStr::new).to_vec();
    program.stdin = script.as_bytes();
    program.timeout = Some(TIMEOUT);
    let finished = program.run()?;
    if finished.end == End::Exited(0) {
        return Ok(String::from_utf8_lossy(&finished.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&finished.stderr);
    Err(NetworkError::Nft { message: message.split_whitespace().collect::<Vec<_>>().join(" ") })
}

/// iptables' table and its chain of what is forwarded.
const FILTER: &str = "filter";
const CHAIN: &str = "FORWARD";

/// What tells our rules from those that an admin makes for the same interfaces. iptables shows it.
const COMMENT: &str = "oci-hooks";

/// A rule, and where it is.
pub type Place = (u8, &'static str, &'static str, Rule);

/// Returns commands for nft that make the rules of iptables' chain that are missing.
fn missing_of_iptables(nftables: &Nftables) -> io::Result<String> {
    let mut script = String::new();
    for (family, name) in [(IPV4, "ip"), (IPV6, "ip6")] {
        if !nftables.drops(family, FILTER, CHAIN)? || !ours_of(nftables, family)?.is_empty() {
            continue;
        }
        for side in ["iifname", "oifname"] {
            let rule = format!("{side} \"{LINK}*\" accept comment \"{COMMENT}\"");
            writeln!(script, "add rule {name} {FILTER} {CHAIN} {rule}").expect("a string takes it");
        }
    }
    Ok(script)
}

/// Returns the rules of iptables' chain that are ours.
fn rules_of_iptables(nftables: &Nftables) -> io::Result<Vec<Place>> {
    let mut rules = ours_of(nftables, IPV4)?;
    rules.extend(ours_of(nftables, IPV6)?);
    Ok(rules)
}

fn ours_of(nftables: &Nftables, family: u8) -> io::Result<Vec<Place>> {
    let has = |rule: &Rule, word: &str| {
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
        assert_eq!(element.set, "one4");
        assert_eq!(element.key, [127, 0, 0, 1, 17, 0, 0, 0, 0x1f, 0x91, 0, 0]);
        assert_eq!(element.data, [10, 213, 9, 2, 0, 80, 0, 0]);
    }

    #[test]
    fn an_element_says_which_port_it_is_and_where_it_leads() {
        for host_ip in [None, Some("127.0.0.1"), Some("fd00::1")] {
            let port = [published(host_ip)];
            for element in elements((&port, CONTAINER)) {
                assert_eq!(separated(&element).as_ref(), Some(&port[0]), "{element:?}");
                let addresses = [CONTAINER.v4.into(), CONTAINER.v6.into()];
                assert!(target(&element).is_some_and(|ip| addresses.contains(&ip)), "{element:?}");
            }
        }
    }

    #[test]
    fn a_port_is_published_in_both_families_unless_on_one_address() {
        let maps = |ip| -> Vec<_> {
            elements((&[published(ip)], CONTAINER)).map(|element| element.set).collect()
        };
        assert_eq!(maps(None), ["any4", "any6"]);
        assert_eq!(maps(Some("192.0.2.1")), ["one4"]);
        assert_eq!(maps(Some("fd00::1")), ["one6"]);
    }
}
