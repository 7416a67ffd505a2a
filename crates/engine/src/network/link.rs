//! Kernel objects of a network: namespaces, the bridge, links, addresses, routes; and removal of networks
//! whose records cannot be read.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::{fs, io};

use oci_hooks_host::netns;

use super::error::NetworkError;
use super::firewall::{self, HOST_ACCESS};
use super::interface::{InterfaceName, LINK};
use super::netlink::{self, FoundLink, Netlink, NewLink};
use super::nftables::Nftables;
use super::record::NetworkRecord;
use super::request::NetworkOptions;
use super::subnet::{AddressPair, AddressPlan};

/// Index of the bridge, above those of links that kernel modules create in every new namespace.
const BRIDGE: u32 = 1000;
/// Index of the bridge namespace's end of the link to the host.
const UPLINK: u32 = 1001;
/// Index of the bridge namespace's end of the first container's link.
const PORTS: u32 = 1002;
/// Index of `eth0` in a container's namespace.
const ETH0: u32 = 1000;

/// Index of `lo` in every namespace.
const LOOPBACK: u32 = 1;

/// Creates the bridge namespace, with its bridge, and its link to the host.
///
/// The bridge only switches. It has no address, and the host's packet filter sees all traffic that leaves the
/// job's containers.
pub fn make_bridge(
    record: &NetworkRecord,
    plan: AddressPlan,
    pin: &Path,
) -> Result<(), NetworkError> {
    let because = |action| to_network_error(record, action);
    let bridge_namespace = netns::create(pin, None, || {
        // The bridge configures no IPv6 address either.
        if fs::exists("/proc/sys/net/ipv6")? {
            set("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        Netlink::open()
    })?
    .map_err(because("open a netlink socket in the bridge namespace"))?;
    let host = netns::open_current()?;
    let mtu = record.mtu;
    let bridge = NewLink { name: "bridge", index: BRIDGE, mtu, ..NewLink::default() };
    let uplink = NewLink { name: "uplink", index: UPLINK, mtu, ..NewLink::default() };
    let on_host = NewLink {
        name: record.link.as_str(),
        index: 0,
        mtu,
        mac: Some(plan.host().mac()),
        group: if record.host_access { HOST_ACCESS } else { 0 },
    };
    bridge_namespace.add_bridge(&bridge).map_err(because("make the bridge"))?;
    bridge_namespace
        .add_pair(&uplink, BRIDGE, &on_host, host.as_fd())
        .map_err(because("make the link to the host"))?;
    link_host(record, plan).map_err(because("configure the link of the host"))
}

fn link_host(record: &NetworkRecord, plan: AddressPlan) -> io::Result<()> {
    let name = record.link.as_str();
    let netlink = Netlink::open()?;
    let index = netlink::index(name)?;
    // For ports published on 127.0.0.1. Packets from containers are filtered.
    set(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
    let AddressPair { v4, v6 } = plan.host();
    netlink.add_address(index, v4.into(), AddressPlan::PREFIX)?;
    if record.ipv6 {
        // A container must not become the host's router, and no other interface has the address.
        set(&format!("net/ipv6/conf/{name}/accept_ra"), "0")?;
        set(&format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
        netlink.add_address(index, v6.into(), AddressPlan::PREFIX6)?;
    }
    netlink.set_up(index)?;
    if record.ipv6 {
        netlink.take_loopback6(index)?;
    }
    if record.uplink.as_ref().is_some_and(|uplink| uplink.ipv6) {
        // The namespace has no other network to configure itself from.
        set("net/ipv6/conf/all/forwarding", "1")?;
    }
    // Only IPv4: for IPv6 this would make the host a router, which then no longer configures itself from the
    // routers of its own network.
    set("net/ipv4/ip_forward", "1")
}

/// Creates the namespace of a container, owned by its user namespace if it has one, and links it to the bridge.
pub fn connect(
    record: &NetworkRecord,
    plan: AddressPlan,
    number: u32,
    [bridge, pin]: [&Path; 2],
    owner: Option<BorrowedFd<'_>>,
) -> Result<(), NetworkError> {
    let because = |action| to_network_error(record, action);
    let (inside, namespace) = netns::create(pin, owner, || {
        if record.ipv6 {
            // Addresses are used at once, and the bridge has no router.
            set("net/ipv6/conf/default/accept_dad", "0")?;
            set("net/ipv6/conf/default/accept_ra", "0")?;
        }
        Ok((Netlink::open()?, netns::open_current()))
    })?
    .map_err(because("open a netlink socket in the namespace of a container"))?;
    let namespace = namespace?;
    let bridge = netns::run_in_namespace(bridge, Netlink::open)?
        .map_err(because("open a netlink socket in the bridge namespace"))?;

    let addresses = plan.container(number);
    let name = format!("port{number}");
    let mtu = record.mtu;
    let port = NewLink { name: &name, index: PORTS + number, mtu, ..NewLink::default() };
    let mac = Some(addresses.mac());
    let eth0 = NewLink { name: "eth0", index: ETH0, mtu, mac, ..NewLink::default() };
    let connect = || {
        bridge.add_pair(&port, BRIDGE, &eth0, namespace.as_fd())?;
        inside.set_up(LOOPBACK)?;
        inside.add_address(ETH0, addresses.v4.into(), AddressPlan::PREFIX)?;
        if record.ipv6 {
            inside.add_address(ETH0, addresses.v6.into(), AddressPlan::PREFIX6)?;
        }
        inside.set_up(ETH0)?;
        inside.add_default_route(plan.host().v4.into())?;
        // Without the route, connections fail at once instead of timing out.
        if record.ipv6 && forwards_ipv6() {
            inside.add_default_route(plan.host().v6.into())?;
        }
        Ok(())
    };
    connect().map_err(because("connect a container"))
}

fn to_network_error(
    record: &NetworkRecord,
    action: &'static str,
) -> impl FnOnce(io::Error) -> NetworkError {
    let id = record.id.clone();
    move |source| NetworkError::Link { action, id, source }
}

/// Sets a parameter of the calling thread's namespace, unless it already has that value, since the file may
/// be read-only.
fn set(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{name}");
    if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(path, value) }
}

/// Returns whether the calling thread's namespace forwards IPv6.
pub fn forwards_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding")
        .is_ok_and(|value| value.trim() == "1")
}

/// Removes a network from the firewall, given the path at which its bridge namespace is pinned.
/// Without the namespace, or a link from it to the host, no packet reaches the network anyway.
pub fn leave_unrecorded(
    options: &NetworkOptions,
    bridge: &Path,
) -> Result<Option<Nftables>, NetworkError> {
    let Some((link, address)) = host_end(bridge) else { return Ok(None) };
    let plan = AddressPlan::from_address(address, options.pool, options.pool6);
    firewall::leave_unrecorded(&link, plan).map(Some)
}

/// Returns the host's end of a bridge namespace's link, and the host's address on it.
fn host_end(bridge: &Path) -> Option<(InterfaceName, std::net::Ipv4Addr)> {
    let uplink = netns::run_in_namespace(bridge, || Netlink::open()?.link(UPLINK)).ok()?.ok()?;
    let FoundLink { name, mac, .. } = Netlink::open().ok()?.link(uplink.peer?).ok()?;
    // The index may belong to another program's interface by now.
    let link = name.starts_with(LINK).then(|| name.parse().ok())??;
    Some((link, AddressPair::ipv4_from_mac(mac?)?))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use oci_hooks_testsupport::damage::RecordDamage;
    use rustix::process::geteuid;

    use super::*;
    use crate::network::record::{RECORD, directory};
    use crate::network::{EndpointRequest, Network, NetworkRequest, PortMapping};

    const APART: &str = "UNRECORDED_TEST_APART";

    #[test]
    fn resources_of_a_corrupt_network_record_are_not_reused() {
        if !geteuid().is_root() {
            return;
        }
        let name = "network::link::tests::creates_networks_on_an_isolated_host";
        let mut test = Command::new("unshare");
        // Ports are published on loopback addresses too.
        let script = r#"ip link set lo up && exec "$0" "$@""#;
        test.args(["--net", "--mount", "--", "sh", "-c", script]);
        test.arg(env::current_exe().unwrap()).args(["--exact", name]).env(APART, "1");
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    }

    #[test]
    fn creates_networks_on_an_isolated_host() {
        if env::var_os(APART).is_none() {
            return;
        }
        // Without a damage, the record is missing.
        for damage in RecordDamage::ALL.map(Some).into_iter().chain([None]) {
            let dir = tempfile::tempdir().unwrap();
            let options = NetworkOptions::for_test(dir.path());
            let make = |id: &str| {
                let request = NetworkRequest { id: id.to_owned(), user_namespace: None };
                Network::create(&options, &request).unwrap()
            };
            let endpoint = |name: &str, ports: &str| EndpointRequest {
                name: name.to_owned(),
                ports: PortMapping::parse(ports).unwrap(),
            };
            let one = make("one");
            one.attach(&endpoint("a", "127.0.0.1:8081:80")).unwrap();
            one.attach(&endpoint("b", "8082:80/udp")).unwrap();
            let record = directory(&options, "one").join(RECORD);
            match damage {
                Some(damage) => damage.inflict(&record),
                None => fs::remove_file(&record).unwrap(),
            }

            let two = make("two");
            assert_ne!(one.host_address(), two.host_address(), "{damage:?}");
            for port in ["8081:80", "8082:81/udp"] {
                let error = two.attach(&endpoint("c", port)).unwrap_err();
                assert!(matches!(error, NetworkError::PortInUse { .. }), "{damage:?}: {error}");
            }
            two.attach(&endpoint("d", "8083:80")).unwrap();
            // Ports on all addresses are in two maps.
            assert_eq!(firewall::list_published().unwrap().len(), 5, "{damage:?}");

            Network::remove_id(&options, "one").unwrap();
            let left = firewall::list_published().unwrap();
            assert!(left.iter().all(|port| port.host_port == 8083), "{damage:?}: {left:?}");
            two.attach(&endpoint("e", "8081:80")).unwrap();
            two.remove().unwrap();
            assert!(firewall::list_published().unwrap().is_empty(), "{damage:?}");
        }
    }
}
