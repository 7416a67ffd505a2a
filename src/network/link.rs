//! The kernel's part of a network: namespaces, the bridge, links, addresses, routes; and what the kernel knows
//! of networks whose records cannot be read.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use super::error::NetworkError;
use super::firewall::{self, HOST_ACCESS};
use super::interface::{Interface, LINK};
use super::netlink::{self, FoundLink, Netlink, NewLink};
use super::nftables::Nftables;
use super::record::Record;
use super::request::NetworkOptions;
use super::subnet::{Pair, Plan};
use crate::sys::netns;

/// Links have numbers of our own choice, above those that the kernel gives to links that some of its
/// modules put into every new namespace.
const BRIDGE: u32 = 1000;
const UPLINK: u32 = 1001;
const PORTS: u32 = 1002;
const ETH0: u32 = 1000;

/// The number of `lo`, in every namespace.
const LOOPBACK: u32 = 1;

/// Makes the bridge namespace, with its bridge, and the link between it and the host.
///
/// The bridge only switches. It has no address, and the packet filter of the host sees all that goes
/// further than to another container of the job.
pub fn make_bridge(record: &Record, plan: Plan, pin: &Path) -> Result<(), NetworkError> {
    let because = |action| because(record, action);
    let bridge_namespace = netns::create(pin, None, || {
        // Neither is there anything for the bridge to configure itself with.
        if fs::exists("/proc/sys/net/ipv6")? {
            set("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        Netlink::open()
    })?
    .map_err(because("open the bridge namespace"))?;
    let host = netns::current()?;
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
    link_host(record, plan).map_err(because("link the host"))
}

fn link_host(record: &Record, plan: Plan) -> io::Result<()> {
    let name = record.link.as_str();
    let netlink = Netlink::open()?;
    let index = netlink::index(name)?;
    // For ports that are published on 127.0.0.1. What comes from containers is filtered.
    set(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
    let Pair { v4, v6 } = plan.host();
    netlink.add_address(index, v4.into(), Plan::PREFIX)?;
    if record.ipv6 {
        // A container must not make itself the host's router. And nobody else has the address.
        set(&format!("net/ipv6/conf/{name}/accept_ra"), "0")?;
        set(&format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
        netlink.add_address(index, v6.into(), Plan::PREFIX6)?;
    }
    netlink.set_up(index)?;
    if record.ipv6 {
        netlink.take_loopback6(index)?;
    }
    if record.uplink.as_ref().is_some_and(|uplink| uplink.ipv6) {
        // There is no other network there to configure itself from.
        set("net/ipv6/conf/all/forwarding", "1")?;
    }
    // Only IPv4: for IPv6 this would make the host a router, which then stops configuring itself
    // from the routers of its own network.
    set("net/ipv4/ip_forward", "1")
}

/// Makes the namespace of a container, which belongs to its user namespace if it has one, and links
/// it to the bridge.
pub fn connect(
    record: &Record,
    plan: Plan,
    number: u32,
    [bridge, pin]: [&Path; 2],
    owner: Option<BorrowedFd<'_>>,
) -> Result<(), NetworkError> {
    let because = |action| because(record, action);
    let (inside, namespace) = netns::create(pin, owner, || {
        if record.ipv6 {
            // Addresses are to be used at once, and the bridge has no router.
            set("net/ipv6/conf/default/accept_dad", "0")?;
            set("net/ipv6/conf/default/accept_ra", "0")?;
        }
        Ok((Netlink::open()?, netns::current()))
    })?
    .map_err(because("open the namespace of a container"))?;
    let namespace = namespace?;
    let bridge =
        netns::within(bridge, Netlink::open)?.map_err(because("open the bridge namespace"))?;

    let addresses = plan.container(number);
    let name = format!("port{number}");
    let mtu = record.mtu;
    let port = NewLink { name: &name, index: PORTS + number, mtu, ..NewLink::default() };
    let mac = Some(addresses.mac());
    let eth0 = NewLink { name: "eth0", index: ETH0, mtu, mac, ..NewLink::default() };
    let connect = || {
        bridge.add_pair(&port, BRIDGE, &eth0, namespace.as_fd())?;
        inside.set_up(LOOPBACK)?;
        inside.add_address(ETH0, addresses.v4.into(), Plan::PREFIX)?;
        if record.ipv6 {
            inside.add_address(ETH0, addresses.v6.into(), Plan::PREFIX6)?;
        }
        inside.set_up(ETH0)?;
        inside.add_default_route(plan.host().v4.into())?;
        // To know at once that there is no way is better than to wait for an answer.
        if record.ipv6 && forwards_ipv6() {
            inside.add_default_route(plan.host().v6.into())?;
        }
        Ok(())
    };
    connect().map_err(because("connect a container"))
}

fn because(record: &Record, action: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
    let id = record.id.clone();
    move |source| NetworkError::Link { action, id, source }
}

/// Sets a parameter of the calling thread's namespace, unless it has that value: where it may not be
/// written it may be right.
fn set(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{name}");
    if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(path, value) }
}

/// Returns whether the calling thread's namespace forwards IPv6.
pub fn forwards_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding")
        .is_ok_and(|value| value.trim() == "1")
}

/// Takes a network out of the firewall, given the pin of its bridge namespace. Without that, or a link from
/// it to the host, nothing gets through to it anyway.
pub fn leave_unrecorded(
    options: &NetworkOptions,
    bridge: &Path,
) -> Result<Option<Nftables>, NetworkError> {
    let Some((link, address)) = host_end(bridge) else { return Ok(None) };
    let plan = Plan::around(address, options.pool, options.pool6);
    firewall::leave_unrecorded(&link, plan).map(Some)
}

/// Returns the host's end of a bridge namespace's link, and the host's address there.
fn host_end(bridge: &Path) -> Option<(Interface, std::net::Ipv4Addr)> {
    let uplink = netns::within(bridge, || Netlink::open()?.link(UPLINK)).ok()?.ok()?;
    let FoundLink { name, mac, .. } = Netlink::open().ok()?.link(uplink.peer?).ok()?;
    // Not somebody else's that has its number by now.
    let link = name.starts_with(LINK).then(|| name.parse().ok())??;
    Some((link, Pair::v4_of(mac?)?))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use rustix::process::geteuid;

    use super::*;
    use crate::network::record::{RECORD, directory};
    use crate::network::{EndpointRequest, Network, NetworkRequest, PortMapping};
    use crate::sys::tests::Damage;

    const APART: &str = "UNRECORDED_TEST_APART";

    #[test]
    fn what_a_network_has_is_nobody_elses_though_its_record_cannot_be_read() {
        if !geteuid().is_root() {
            return;
        }
        let name = "network::link::tests::makes_networks_where_there_are_no_others";
        let mut test = Command::new("unshare");
        // Ports are published on its addresses too.
        let script = r#"ip link set lo up && exec "$0" "$@""#;
        test.args(["--net", "--mount", "--", "sh", "-c", script]);
        test.arg(env::current_exe().unwrap()).args(["--exact", name]).env(APART, "1");
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    }

    #[test]
    fn makes_networks_where_there_are_no_others() {
        if env::var_os(APART).is_none() {
            return;
        }
        for damage in Damage::ALL {
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
            damage.inflict(&directory(&options, "one").join(RECORD));

            let two = make("two");
            assert_ne!(one.host_address(), two.host_address(), "{damage:?}");
            for port in ["8081:80", "8082:81/udp"] {
                let error = two.attach(&endpoint("c", port)).unwrap_err();
                assert!(matches!(error, NetworkError::PortInUse { .. }), "{damage:?}: {error}");
            }
            two.attach(&endpoint("d", "8083:80")).unwrap();
            // Those for all addresses are in two maps.
            assert_eq!(firewall::published().unwrap().len(), 5, "{damage:?}");

            Network::remove_id(&options, "one").unwrap();
            let left = firewall::published().unwrap();
            assert!(left.iter().all(|port| port.host_port == 8083), "{damage:?}: {left:?}");
            two.attach(&endpoint("e", "8081:80")).unwrap();
            two.remove().unwrap();
            assert!(firewall::published().unwrap().is_empty(), "{damage:?}");
        }
    }
}
