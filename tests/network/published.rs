//! Ports on the host that lead to containers.

use std::net::{TcpListener, TcpStream, UdpSocket};

use oci_hooks::network::NetworkError;

use crate::host::{self, Host, nft, set};
use crate::{TIMEOUT, ask, at, endpoint, expect_unreachable, serve, serve_in, within};

#[test]
fn published_ports_lead_to_the_container() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("publish");
        let ports = ["8080:80", "80", "127.0.0.1:9000:80", "[2001:db8::1]:9001:80"];
        let service = network.attach(&endpoint("service", &ports)).unwrap();
        serve_in(&service);
        let random = service.published[1].host_port;
        assert!(random > 60999, "{random} may be given to any program");
        for address in [
            "127.0.0.1:8080".to_owned(),
            at(host::ADDRESS.parse().unwrap(), 8080),
            at(network.host_address().unwrap(), 8080),
            at(host::ADDRESS6.parse().unwrap(), 8080),
            format!("127.0.0.1:{random}"),
            "127.0.0.1:9000".to_owned(),
            at(host::ADDRESS6.parse().unwrap(), 9001),
        ] {
            ask(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
        // Published on one address only.
        expect_unreachable(&at(host::ADDRESS.parse().unwrap(), 9000));
        expect_unreachable("127.0.0.1:9001");
        network.remove().unwrap();
    });
}

#[test]
fn ports_published_on_the_loopback_addresses_of_both_families_lead_to_the_container() {
    let host = Host::new();
    host.run(|| {
        let networks = ["one", "two"].map(|id| host.network(id));
        let ports = ["8080:80", "[::1]:9000:80", "127.0.0.1:9001:80"];
        let first = networks[0].attach(&endpoint("service", &ports)).unwrap();
        let second = networks[1].attach(&endpoint("service", &["8081:80"])).unwrap();
        serve_in(&first);
        serve_in(&second);
        for address in
            ["127.0.0.1:8080", "[::1]:8080", "[::1]:9000", "127.0.0.1:9001", "[::1]:8081"]
        {
            ask(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
        let refused = |address| {
            let error = ask(address).unwrap_err();
            // Refused, not lost: programs try the other family next.
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{address}: {error}");
        };
        refused("[::1]:9001");
        refused("127.0.0.1:9000");
        // What the host has there itself is as before, and containers do not reach it.
        let own = TcpListener::bind("[::1]:0").unwrap();
        TcpStream::connect(own.local_addr().unwrap()).unwrap();
        own.accept().unwrap();
        // A service that listens on IPv4 alone.
        let four = networks[0].attach(&endpoint("four", &["8082:81"])).unwrap();
        within(&four, || serve("0.0.0.0:81"));
        ask("127.0.0.1:8082").unwrap();
        refused("[::1]:8082");
        let [one, two] = networks;
        one.remove().unwrap();
        ask("[::1]:8081").unwrap();
        two.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn published_ports_are_reached_from_outside() {
    let host = Host::new();
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let network = host.network("outside");
        let service = network.attach(&endpoint("service", &["8080:80"])).unwrap();
        serve_in(&service);
        host.outside(|| {
            for (own, address) in [(host::WORLD, host::ADDRESS), (host::WORLD6, host::ADDRESS6)] {
                // The container sees who it is.
                assert_eq!(ask(&at(address.parse().unwrap(), 8080)).unwrap().to_string(), own);
            }
        });
        // And from the job itself, by the host's address.
        let other = network.attach(&endpoint("other", &[])).unwrap();
        for container in [&service, &other] {
            within(container, || ask(&at(host::ADDRESS.parse().unwrap(), 8080)).unwrap());
        }
        network.remove().unwrap();
    });
}

#[test]
fn udp_is_published_too() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("udp");
        let service = network.attach(&endpoint("service", &["5353:53/udp"])).unwrap();
        let server = within(&service, || UdpSocket::bind("0.0.0.0:53").unwrap());
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"query", "127.0.0.1:5353").unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut buffer = [0; 16];
        let (count, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"query");
        server.send_to(b"answer", from).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 6);
        network.remove().unwrap();
    });
}

#[test]
fn a_port_in_use_is_refused_with_who_has_it() {
    let host = Host::new();
    host.run(|| {
        let _own = TcpListener::bind("0.0.0.0:8081").unwrap();
        let network = host.network("ports");
        let error = network.attach(&endpoint("a", &["8081:80"])).unwrap_err();
        assert!(matches!(error, NetworkError::PortInUse { port: 8081, .. }), "{error}");
        let process = format!("(process {})", std::process::id());
        assert!(error.to_string().contains(&process), "{error}");
        let a = network.attach(&endpoint("b", &["8081-8083:80"])).unwrap();
        assert_eq!(a.published[0].host_port, 8082);
        let other = host.network("other");
        let error = other.attach(&endpoint("a", &["8082:80"])).unwrap_err();
        assert!(error.to_string().contains("container b of network ports"), "{error}");
        // Other addresses and protocols are other ports.
        other.attach(&endpoint("c", &["8082:80/udp"])).unwrap();
        // Once it is given back it is free.
        network.detach("b").unwrap();
        other.attach(&endpoint("a", &["8082:80"])).unwrap();
        network.remove().unwrap();
        other.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn ports_stay_published_when_the_rules_are_flushed_and_loaded_anew() {
    let host = Host::new();
    host.run(|| {
        let network = host.network("flushed");
        let service = network.attach(&endpoint("service", &["8080:80"])).unwrap();
        serve_in(&service);
        nft("flush ruleset");
        expect_unreachable("127.0.0.1:8080");
        let other = host.network("next");
        ask("127.0.0.1:8080").unwrap();
        // Whoever loads the rules anew may be killed before the ports are published again.
        nft("flush map inet oci_hooks any4; delete chain inet oci_hooks complete");
        expect_unreachable("127.0.0.1:8080");
        let third = host.network("third");
        ask("127.0.0.1:8080").unwrap();
        third.remove().unwrap();
        ask("127.0.0.1:8080").unwrap();
        nft("flush ruleset");
        // With nothing to take back, they are removed all the same.
        network.remove().unwrap();
        other.remove().unwrap();
        host.expect_nothing_left();
    });
}
