//! Published ports.

use std::net::{TcpListener, TcpStream, UdpSocket};

use oci_hooks_engine::network::NetworkError;

use crate::network::host::{self, NetworkHost, nft, set};
use crate::network::{
    TIMEOUT, ask, endpoint, expect_unreachable, join_address, run_in_network, serve, serve_in,
};

#[test]
fn published_ports_lead_to_the_container() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("publish");
        let ports = ["8080:80", "80", "127.0.0.1:9000:80", "[2001:db8::1]:9001:80"];
        let service = network.attach(&endpoint("service", &ports)).unwrap();
        serve_in(&service);
        let random = service.published[1].host_port;
        assert!(random > 60999, "{random} may be given to any program");
        for address in [
            "127.0.0.1:8080".to_owned(),
            join_address(host::ADDRESS.parse().unwrap(), 8080),
            join_address(network.host_address(), 8080),
            join_address(host::ADDRESS6.parse().unwrap(), 8080),
            format!("127.0.0.1:{random}"),
            "127.0.0.1:9000".to_owned(),
            join_address(host::ADDRESS6.parse().unwrap(), 9001),
        ] {
            ask(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
        // Published on one address only.
        expect_unreachable(&join_address(host::ADDRESS.parse().unwrap(), 9000));
        expect_unreachable("127.0.0.1:9001");
        network.remove().unwrap();
    });
}

#[test]
fn ports_published_on_both_loopback_addresses_lead_to_the_container() {
    let host = NetworkHost::new();
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
            // Refused, not dropped: programs then try the other family.
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{address}: {error}");
        };
        refused("[::1]:9001");
        refused("127.0.0.1:9000");
        // The host's own services on loopback still work.
        let own = TcpListener::bind("[::1]:0").unwrap();
        TcpStream::connect(own.local_addr().unwrap()).unwrap();
        own.accept().unwrap();
        // A service that only listens on IPv4.
        let four = networks[0].attach(&endpoint("four", &["8082:81"])).unwrap();
        run_in_network(&four, || serve("0.0.0.0:81"));
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
    let host = NetworkHost::new();
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let network = host.network("outside");
        let service = network.attach(&endpoint("service", &["8080:80"])).unwrap();
        serve_in(&service);
        host.run_outside(|| {
            for (own, address) in [(host::WORLD, host::ADDRESS), (host::WORLD6, host::ADDRESS6)] {
                // The container sees the client's address.
                assert_eq!(
                    ask(&join_address(address.parse().unwrap(), 8080)).unwrap().to_string(),
                    own
                );
            }
        });
        // Also from the job itself, by the host's address.
        let other = network.attach(&endpoint("other", &[])).unwrap();
        for container in [&service, &other] {
            run_in_network(container, || {
                ask(&join_address(host::ADDRESS.parse().unwrap(), 8080)).unwrap()
            });
        }
        network.remove().unwrap();
    });
}

#[test]
fn udp_is_published_too() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("udp");
        let service = network.attach(&endpoint("service", &["5353:53/udp"])).unwrap();
        let server = run_in_network(&service, || UdpSocket::bind("0.0.0.0:53").unwrap());
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
fn used_port_is_rejected_with_its_owner() {
    let host = NetworkHost::new();
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
        // The same number is free for another protocol.
        other.attach(&endpoint("c", &["8082:80/udp"])).unwrap();
        // A withdrawn port is free again.
        network.detach("b").unwrap();
        other.attach(&endpoint("a", &["8082:80"])).unwrap();
        network.remove().unwrap();
        other.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn ports_stay_published_after_a_firewall_reload() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("flushed");
        let service = network.attach(&endpoint("service", &["8080:80"])).unwrap();
        serve_in(&service);
        nft("flush ruleset");
        expect_unreachable("127.0.0.1:8080");
        let other = host.network("next");
        ask("127.0.0.1:8080").unwrap();
        // A process may be killed after it loaded the rules, before it published the ports again.
        nft("flush map inet oci_hooks any4; delete chain inet oci_hooks complete");
        expect_unreachable("127.0.0.1:8080");
        let third = host.network("third");
        ask("127.0.0.1:8080").unwrap();
        third.remove().unwrap();
        ask("127.0.0.1:8080").unwrap();
        nft("flush ruleset");
        // Networks can be removed even if their elements are missing.
        network.remove().unwrap();
        other.remove().unwrap();
        host.expect_nothing_left();
    });
}
