//! What containers reach: each other, the host, the world.

use std::process::Command;

use crate::host::{self, Host, ip, set};
use crate::{ask, at, endpoint, serve, serve_in, within};

#[test]
fn containers_of_a_job_reach_each_other_and_see_who_asks() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("reach");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let b = network.attach(&endpoint("b", &[])).unwrap();
        assert_eq!(b.addresses.len(), 2);
        serve_in(&b);
        within(&a, || {
            for (own, other) in a.addresses.iter().zip(&b.addresses) {
                assert_eq!(ask(&at(*other, 80)).unwrap(), *own);
            }
            // And themselves.
            serve("127.0.0.1:81");
            assert!(ask("127.0.0.1:81").is_ok());
        });
        network.remove().unwrap();
    });
}

#[test]
fn addresses_can_be_used_as_soon_as_they_are_there() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("at-once");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let (addresses, accept_dad) = within(&a, || {
            let output = Command::new("ip").args(["-o", "address", "show", "eth0"]).output();
            let accept_dad = std::fs::read_to_string("/proc/sys/net/ipv6/conf/eth0/accept_dad");
            (String::from_utf8(output.unwrap().stdout).unwrap(), accept_dad.unwrap())
        });
        for address in &a.addresses {
            let line = addresses.lines().find(|line| line.contains(&format!(" {address}/")));
            assert!(line.is_some_and(|line| !line.contains("tentative")), "{addresses}");
        }
        // The kernel's own address is tentative until a worker of its runs, but not for the
        // second that looking for its double takes.
        assert_eq!(accept_dad.trim(), "0", "{addresses}");
        network.remove().unwrap();
    });
}

#[test]
fn the_world_is_reached_under_the_hosts_address() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
    host.run(|| {
        let network = host.network("out");
        let [world, world6] = [host::WORLD, host::WORLD6].map(|ip| at(ip.parse().unwrap(), 80));
        let a = network.attach(&endpoint("a", &[])).unwrap();
        within(&a, || {
            assert_eq!(ask(&world).unwrap().to_string(), host::ADDRESS);
            // The host does not pass IPv6 on: that is known at once.
            let error = ask(&world6).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable, "{error}");
        });
        set("net/ipv6/conf/all/forwarding", "1");
        let b = network.attach(&endpoint("b", &[])).unwrap();
        within(&b, || assert_eq!(ask(&world6).unwrap().to_string(), host::ADDRESS6));
        network.remove().unwrap();
    });
}

#[test]
fn packets_are_no_longer_than_the_hosts_link_takes() {
    let host = Host::new();
    host.run(|| {
        ip("link set outside mtu 1400");
        let network = host.network("mtu");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let link = within(&a, || {
            Command::new("ip").args(["-o", "link", "show", "eth0"]).output().unwrap()
        });
        let link = String::from_utf8(link.stdout).unwrap();
        assert!(link.contains("mtu 1400"), "{link}");
        network.remove().unwrap();
    });
}

#[test]
fn subnets_that_the_host_has_routes_to_are_left_alone() {
    let host = Host::new();
    host.run(|| {
        ip(&format!("route add 10.213.0.0/17 via {}", host::WORLD));
        let network = host.network("routes");
        assert_eq!(network.host_address().unwrap().to_string(), "10.213.128.1");
        network.remove().unwrap();
    });
}
