//! Destinations that containers reach: each other, the host, the world.

use std::process::Command;

use crate::network::host::{self, NetworkHost, ip, set};
use crate::network::{ask, endpoint, join_address, run_in_network, serve, serve_in};

#[test]
fn containers_of_a_job_reach_each_other_and_see_peer_addresses() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("reach");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let b = network.attach(&endpoint("b", &[])).unwrap();
        assert_eq!(b.addresses.len(), 2);
        serve_in(&b);
        run_in_network(&a, || {
            for (own, other) in a.addresses.iter().zip(&b.addresses) {
                assert_eq!(ask(&join_address(*other, 80)).unwrap(), *own);
            }
            // Containers also reach themselves.
            serve("127.0.0.1:81");
            assert!(ask("127.0.0.1:81").is_ok());
        });
        network.remove().unwrap();
    });
}

#[test]
fn addresses_are_usable_immediately() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("at-once");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let (addresses, accept_dad) = run_in_network(&a, || {
            let output = Command::new("ip").args(["-o", "address", "show", "eth0"]).output();
            let accept_dad = std::fs::read_to_string("/proc/sys/net/ipv6/conf/eth0/accept_dad");
            (String::from_utf8(output.unwrap().stdout).unwrap(), accept_dad.unwrap())
        });
        for address in &a.addresses {
            let line = addresses.lines().find(|line| line.contains(&format!(" {address}/")));
            assert!(line.is_some_and(|line| !line.contains("tentative")), "{addresses}");
        }
        // The link-local address is tentative until a kernel worker runs, but not for the second of duplicate
        // detection.
        assert_eq!(accept_dad.trim(), "0", "{addresses}");
        network.remove().unwrap();
    });
}

#[test]
fn outgoing_connections_have_the_hosts_address() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        let network = host.network("out");
        let [world, world6] =
            [host::WORLD, host::WORLD6].map(|ip| join_address(ip.parse().unwrap(), 80));
        let a = network.attach(&endpoint("a", &[])).unwrap();
        run_in_network(&a, || {
            assert_eq!(ask(&world).unwrap().to_string(), host::ADDRESS);
            // The host does not forward IPv6: connections fail at once.
            let error = ask(&world6).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable, "{error}");
        });
        set("net/ipv6/conf/all/forwarding", "1");
        let b = network.attach(&endpoint("b", &[])).unwrap();
        run_in_network(&b, || assert_eq!(ask(&world6).unwrap().to_string(), host::ADDRESS6));
        network.remove().unwrap();
    });
}

#[test]
fn packets_fit_the_mtu_of_the_host() {
    let host = NetworkHost::new();
    host.run(|| {
        ip("link set outside mtu 1400");
        let network = host.network("mtu");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let link = run_in_network(&a, || {
            Command::new("ip").args(["-o", "link", "show", "eth0"]).output().unwrap()
        });
        let link = String::from_utf8(link.stdout).unwrap();
        assert!(link.contains("mtu 1400"), "{link}");
        network.remove().unwrap();
    });
}

#[test]
fn subnets_with_host_routes_are_skipped() {
    let host = NetworkHost::new();
    host.run(|| {
        ip(&format!("route add 10.213.0.0/17 via {}", host::WORLD));
        let network = host.network("routes");
        assert_eq!(network.host_address().to_string(), "10.213.128.1");
        network.remove().unwrap();
    });
}
