//! What containers do not reach.

use std::net::UdpSocket;

use oci_hooks::network::{Network, NetworkRequest};
use oci_hooks::sys::metadata::{METADATA, Metadata};

use crate::host::{self, Host, ip, nft, set};
use crate::{SHORT, TIMEOUT, ask, at, endpoint, expect_unreachable, serve, serve_in, within};

#[test]
fn one_job_does_not_reach_another() {
    let host = Host::new();
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let (one, two) = (host.network("one"), host.network("two"));
        let a = one.attach(&endpoint("a", &[])).unwrap();
        let b = two.attach(&endpoint("b", &["8080:80"])).unwrap();
        serve_in(&b);
        within(&a, || {
            for address in &b.addresses {
                expect_unreachable(&at(*address, 80));
            }
            // Nor by what it publishes.
            for address in [host::ADDRESS.parse().unwrap(), host::ADDRESS6.parse().unwrap()] {
                expect_unreachable(&at(address, 8080));
            }
            expect_unreachable(&at(one.host_address().unwrap(), 8080));
            expect_unreachable(&at(two.host_address().unwrap(), 8080));
        });
        ask("127.0.0.1:8080").unwrap();
        one.remove().unwrap();
        two.remove().unwrap();
    });
}

#[test]
fn metadata_addresses_are_out_of_reach() {
    let host = Host::new();
    host.outside(|| {
        serve("[::]:80");
        serve("[::]:53");
        serve("[::]:32526");
    });
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let network = host.network("metadata");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        for Metadata { address, cloud, .. } in METADATA {
            within(&a, || {
                expect_unreachable(&at(*address, 80));
                // Azure's agent is asked there for the machine's certificates.
                expect_unreachable(&at(*address, 32526));
                // Where some clouds have their resolver.
                ask(&at(*address, 53)).unwrap_or_else(|error| panic!("{cloud}: {error}"));
            });
            // The machine itself has it, or this would pass without the rule.
            ask(&at(*address, 80)).unwrap();
            ask(&at(*address, 32526)).unwrap();
        }
        // That is what the rules are for.
        nft("flush chain inet oci_hooks prerouting_raw");
        assert!(within(&a, || METADATA.iter().all(|m| ask(&at(m.address, 80)).is_ok())));
        network.remove().unwrap();
    });
}

#[test]
fn the_hosts_loopback_is_out_of_reach() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("loopback");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        serve("127.0.0.1:7001");
        serve("0.0.0.0:7000");
        let gateway = network.host_address().unwrap();
        within(&a, || {
            ask(&at(gateway, 7000)).unwrap();
            expect_unreachable(&at(gateway, 7001));
            // A container with the capability for it sends packets for 127.0.0.1 to the host.
            set("net/ipv4/conf/eth0/route_localnet", "1");
            ip("rule add preference 1 to 127.0.0.0/8 lookup 100");
            ip(&format!("route add 127.0.0.0/8 via {gateway} src {} table 100", a.addresses[0]));
            ip("rule del preference 0");
            ip("rule add preference 2 lookup local");
            expect_unreachable("127.0.0.1:7001");
        });
        // That is what the rule is for.
        nft("flush chain inet oci_hooks prerouting_raw");
        within(&a, || ask("127.0.0.1:7001").unwrap());
        network.remove().unwrap();
    });
}

#[test]
fn ports_that_are_not_published_are_not_reached_from_outside() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("closed");
        let a = network.attach(&endpoint("a", &["8080:80"])).unwrap();
        serve_in(&a);
        within(&a, || serve("0.0.0.0:81"));
        let gateway = network.host_address().unwrap();
        host.outside(|| {
            ip(&format!("route add {}/24 via {}", "10.213.0.0", host::ADDRESS));
            assert_eq!(gateway.to_string(), "10.213.0.1");
            expect_unreachable(&at(a.addresses[0], 81));
            expect_unreachable(&at(a.addresses[0], 80));
            ask(&at(host::ADDRESS.parse().unwrap(), 8080)).unwrap();
        });
        network.remove().unwrap();
    });
}

#[test]
fn addresses_of_others_are_of_no_use() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("spoof");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let server = UdpSocket::bind("0.0.0.0:7000").unwrap();
        let gateway = at(network.host_address().unwrap(), 7000);
        let send = |from: &str, text: &[u8]| {
            within(&a, || {
                let client = UdpSocket::bind(from).unwrap();
                client.send_to(text, &gateway).unwrap();
            });
        };
        within(&a, || ip(&format!("address add {}/32 dev eth0", host::WORLD)));
        let stolen = format!("{}:0", host::WORLD);
        let own = at(a.addresses[0], 0);
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
fn without_host_access_only_the_world_is_reached() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
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
            network.host_address().unwrap(),
            host::ADDRESS.parse().unwrap(),
            "fd6f:6369:686b::1".parse().unwrap(),
        ];
        within(&a, || {
            for address in addresses {
                expect_unreachable(&at(address, 7000));
            }
            ask(&at(host::WORLD.parse().unwrap(), 80)).unwrap();
        });
        // What is published is the other direction.
        ask("127.0.0.1:8080").unwrap();
        ask(&at(host::ADDRESS6.parse().unwrap(), 8080)).unwrap();
        // Another network of the same host may.
        within(&b, || ask(&at(host::ADDRESS.parse().unwrap(), 7000)).unwrap());
        network.remove().unwrap();
        open.remove().unwrap();
    });
}
