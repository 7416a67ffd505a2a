//! Networks whose records cannot be read: what the kernel says of them.

use std::path::Path;

use super::error::NetworkError;
use super::firewall;
use super::interface::Interface;
use super::job::NetworkOptions;
use super::link::UPLINK;
use super::netlink::{FoundLink, Netlink};
use super::nftables::Nftables;
use super::record::LINK;
use super::subnet::{Pair, Plan};
use crate::sys::netns;

/// Takes a network out of the firewall, given the pin of its bridge namespace. Without that, or a link from
/// it to the host, nothing gets through to it anyway.
pub(super) fn leave(
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
        let name = "network::unrecorded::tests::makes_networks_where_there_are_no_others";
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
