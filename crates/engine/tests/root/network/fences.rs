//! Addresses that containers must not reach.

use std::net::UdpSocket;

use oci_hooks_engine::network::{Network, NetworkRequest};
use oci_hooks_host::metadata::{METADATA, MetadataAddress};

use crate::network::host::{self, NetworkHost, ip, nft, set};
use crate::network::{
    SHORT, TIMEOUT, ask, endpoint, expect_unreachable, join_address, run_in_network, serve,
    serve_in,
};

#[test]
fn jobs_cannot_reach_each_other() {
    let host = NetworkHost::new();
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let (one, two) = (host.network("one"), host.network("two"));
        let a = one.attach(&endpoint("a", &[])).unwrap();
        let b = two.attach(&endpoint("b", &["8080:80"])).unwrap();
        serve_in(&b);
        run_in_network(&a, || {
            for address in &b.addresses {
                expect_unreachable(&join_address(*address, 80));
            }
            // Published ports are out of reach too.
            for address in [host::ADDRESS.parse().unwrap(), host::ADDRESS6.parse().unwrap()] {
                expect_unreachable(&join_address(address, 8080));
            }
            expect_unreachable(&join_address(one.host_address(), 8080));
            expect_unreachable(&join_address(two.host_address(), 8080));
        });
        ask("127.0.0.1:8080").unwrap();
        one.remove().unwrap();
        two.remove().unwrap();
    });
}

#[test]
fn metadata_addresses_are_unreachable() {
    let host = NetworkHost::new();
    host.run_outside(|| {
        serve("[::]:80");
        serve("[::]:53");
        serve("[::]:32526");
    });
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let network = host.network("metadata");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        for MetadataAddress { address, cloud, .. } in METADATA {
            run_in_network(&a, || {
                expect_unreachable(&join_address(*address, 80));
                // Azure's agent serves the machine's certificates on this port.
                expect_unreachable(&join_address(*address, 32526));
                // Some clouds have their resolver there.
                ask(&join_address(*address, 53)).unwrap_or_else(|error| panic!("{cloud}: {error}"));
            });
            // Without the rule the addresses are reachable, as they are from the machine.
            ask(&join_address(*address, 80)).unwrap();
            ask(&join_address(*address, 32526)).unwrap();
        }
        // Without the rules, containers reach the addresses.
        nft("flush chain inet oci_hooks prerouting_raw");
        assert!(run_in_network(&a, || METADATA
            .iter()
            .all(|m| ask(&join_address(m.address, 80)).is_ok())));
        network.remove().unwrap();
    });
}

#[test]
fn host_loopback_is_unreachable() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("loopback");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        serve("127.0.0.1:7001");
        serve("0.0.0.0:7000");
        let gateway = network.host_address();
        run_in_network(&a, || {
            ask(&join_address(gateway, 7000)).unwrap();
            expect_unreachable(&join_address(gateway, 7001));
            // A container with CAP_NET_ADMIN sends packets for 127.0.0.1 to the host.
            set("net/ipv4/conf/eth0/route_localnet", "1");
            ip("rule add preference 1 to 127.0.0.0/8 lookup 100");
            ip(&format!("route add 127.0.0.0/8 via {gateway} src {} table 100", a.addresses[0]));
            ip("rule del preference 0");
            ip("rule add preference 2 lookup local");
            expect_unreachable("127.0.0.1:7001");
        });
        // Without the rule, the container reaches the host's loopback.
        nft("flush chain inet oci_hooks prerouting_raw");
        run_in_network(&a, || ask("127.0.0.1:7001").unwrap());
        network.remove().unwrap();
    });
}

#[test]
fn unpublished_ports_are_unreachable_from_outside() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("closed");
        let a = network.attach(&endpoint("a", &["8080:80"])).unwrap();
        serve_in(&a);
        run_in_network(&a, || serve("0.0.0.0:81"));
        let gateway = network.host_address();
        host.run_outside(|| {
            ip(&format!("route add {}/24 via {}", "10.213.0.0", host::ADDRESS));
            assert_eq!(gateway.to_string(), "10.213.0.1");
            expect_unreachable(&join_address(a.addresses[0], 81));
            expect_unreachable(&join_address(a.addresses[0], 80));
            ask(&join_address(host::ADDRESS.parse().unwrap(), 8080)).unwrap();
        });
        network.remove().unwrap();
    });
}

#[test]
fn spoofed_addresses_are_useless() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("spoof");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let server = UdpSocket::bind("0.0.0.0:7000").unwrap();
        let gateway = join_address(network.host_address(), 7000);
        let send = |from: &str, text: &[u8]| {
            run_in_network(&a, || {
                let client = UdpSocket::bind(from).unwrap();
                client.send_to(text, &gateway).unwrap();
            });
        };
        run_in_network(&a, || ip(&format!("address add {}/32 dev eth0", host::WORLD)));
        let stolen = format!("{}:0", host::WORLD);
        let own = join_address(a.addresses[0], 0);
        let mut buffer = [0; 16];
        server.set_read_timeout(Some(SHORT)).unwrap();
        send(&stolen, b"stolen");
        assert!(server.recv(&mut buffer).is_err());
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        send(&own, b"own");
        assert_eq!(server.recv(&mut buffer).unwrap(), 3);
        nft("flush chain inet oci_hooks prerouting_raw");
        send(&stolen, b"stolen");
        assert_eq!(server.recv(&mut buffer).unwrap(), 6);
        network.remove().unwrap();
    });
}

#[test]
fn only_the_outside_world_is_reachable_without_host_access() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        let mut options = host.options();
        options.host_access = false;
        let network = Network::create(&options, &NetworkRequest::new("closed")).unwrap();
        let open = host.network("open");
        let a = network.attach(&endpoint("a", &["8080:80"])).unwrap();
        let b = open.attach(&endpoint("b", &[])).unwrap();
        serve("[::]:7000");
        serve_in(&a);
        let addresses = [
            network.host_address(),
            host::ADDRESS.parse().unwrap(),
            "fd6f:6369:686b::1".parse().unwrap(),
        ];
        run_in_network(&a, || {
            for address in addresses {
                expect_unreachable(&join_address(address, 7000));
            }
            ask(&join_address(host::WORLD.parse().unwrap(), 80)).unwrap();
        });
        // Published ports are the other direction.
        ask("127.0.0.1:8080").unwrap();
        ask(&join_address(host::ADDRESS6.parse().unwrap(), 8080)).unwrap();
        // Another network of the same host may reach it.
        run_in_network(&b, || ask(&join_address(host::ADDRESS.parse().unwrap(), 7000)).unwrap());
        network.remove().unwrap();
        open.remove().unwrap();
    });
}
