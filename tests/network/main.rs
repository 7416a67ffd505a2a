//! Networks of jobs, made for real in a network namespace that plays the host.
//!
//! Each test makes that namespace for itself: nothing of the machine's own network is touched.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod host;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use host::Host;
use oci_hooks::network::{EndpointRequest, Network, NetworkError, NetworkRequest, PortMapping};
use oci_hooks::sys::netns;

const TIMEOUT: Duration = Duration::from_secs(5);

fn request(id: &str) -> NetworkRequest {
    NetworkRequest { id: id.to_owned() }
}

fn endpoint(name: &str, ports: &[&str]) -> EndpointRequest {
    let ports = ports.iter().flat_map(|port| PortMapping::parse(port).unwrap()).collect();
    EndpointRequest { name: name.to_owned(), ports }
}

/// Answers one connection to a port of every address.
fn serve(pin: &Path, address: IpAddr, port: u16) {
    let listener = netns::within(pin, || TcpListener::bind((address, port)).unwrap()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"hello");
        }
    });
}

/// Says what a server answers; an error if it cannot be reached.
fn ask(address: SocketAddr) -> std::io::Result<String> {
    ask_for(address, TIMEOUT)
}

fn ask_for(address: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A packet that is dropped is not answered: how long is waited for what must not come.
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn containers_of_a_job_reach_each_other() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let mut network = Network::create(&options, &request("reach")).unwrap();
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let b = network.attach(&endpoint("b", &[])).unwrap();
        assert_eq!(a.addresses.len(), 2);
        for address in &b.addresses {
            serve(&b.netns, *address, 80);
            let answer = netns::within(&a.netns, || ask((*address, 80).into())).unwrap();
            assert_eq!(answer.unwrap(), "hello", "{address}");
        }
        Network::remove_id(&options, "reach").unwrap();
    });
}

#[test]
fn published_ports_lead_to_the_container() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let mut network = Network::create(&options, &request("publish")).unwrap();
        let ports = ["8080:80", "80", "127.0.0.1:9000:80", "5353:53/udp"];
        let service = network.attach(&endpoint("service", &ports)).unwrap();
        serve(&service.netns, "0.0.0.0".parse().unwrap(), 80);
        let random = service.published[1].host_port;
        for address in [
            "127.0.0.1:8080".to_owned(),
            format!("{}:8080", host::ADDRESS),
            format!("127.0.0.1:{random}"),
            "127.0.0.1:9000".to_owned(),
        ] {
            assert_eq!(ask(address.parse().unwrap()).unwrap(), "hello", "{address}");
        }
        // Published on loopback only.
        assert!(ask_for(format!("{}:9000", host::ADDRESS).parse().unwrap(), SHORT).is_err());
        // From outside.
        let outside = host.outside(|| ask(format!("{}:8080", host::ADDRESS).parse().unwrap()));
        assert_eq!(outside.unwrap(), "hello");

        let server =
            netns::within(&service.netns, || UdpSocket::bind("0.0.0.0:53").unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"query", "127.0.0.1:5353").unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut buffer = [0; 16];
        let (count, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"query");
        server.send_to(b"answer", from).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 6);
        Network::remove_id(&options, "publish").unwrap();
    });
}

#[test]
fn a_port_in_use_is_refused() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let _own = TcpListener::bind("0.0.0.0:8081").unwrap();
        let mut network = Network::create(&options, &request("ports")).unwrap();
        let error = network.attach(&endpoint("a", &["8081:80"])).unwrap_err();
        assert!(matches!(error, NetworkError::PortInUse { port: 8081, .. }), "{error}");
        let a = network.attach(&endpoint("b", &["8081-8083:80"])).unwrap();
        assert_eq!(a.published[0].host_port, 8082);
        let mut other = Network::create(&options, &request("ports-2")).unwrap();
        let error = other.attach(&endpoint("a", &["8082:80"])).unwrap_err();
        assert!(matches!(error, NetworkError::PortInUse { port: 8082, .. }), "{error}");
        for id in ["ports", "ports-2"] {
            Network::remove_id(&options, id).unwrap();
        }
    });
}

#[test]
fn the_world_is_reached_under_the_hosts_address() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let mut network = Network::create(&options, &request("out")).unwrap();
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let listener = host.outside(|| TcpListener::bind((host::WORLD, 80)).unwrap());
        let address: SocketAddr = format!("{}:80", host::WORLD).parse().unwrap();
        let stream = netns::within(&a.netns, || TcpStream::connect_timeout(&address, TIMEOUT));
        let _stream = stream.unwrap().unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), host::ADDRESS);
        Network::remove_id(&options, "out").unwrap();
    });
}

#[test]
fn row_35_metadata_loopback_and_other_jobs_are_out_of_reach() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let mut one = Network::create(&options, &request("one")).unwrap();
        let mut two = Network::create(&options, &request("two")).unwrap();
        let a = one.attach(&endpoint("a", &[])).unwrap();
        let b = two.attach(&endpoint("b", &[])).unwrap();
        for address in &b.addresses {
            serve(&b.netns, *address, 80);
        }
        // Where a cloud would answer; so that only a rule can be why it does not.
        let metadata = host.outside(|| TcpListener::bind("169.254.169.254:80").unwrap());
        let everywhere = TcpListener::bind("0.0.0.0:7000").unwrap();
        let loopback = TcpListener::bind("127.0.0.1:7001").unwrap();
        std::thread::spawn(move || {
            for stream in everywhere.incoming() {
                let _ = stream.unwrap().write_all(b"hello");
            }
        });
        netns::within(&a.netns, || {
            for address in &b.addresses {
                assert!(ask_for((*address, 80).into(), SHORT).is_err(), "{address}");
            }
            assert!(ask_for("169.254.169.254:80".parse().unwrap(), SHORT).is_err());
            let gateway = one.host_address().unwrap();
            assert!(ask_for((gateway, 7001).into(), SHORT).is_err());
            // The rule is what keeps it away: what listens on all addresses is reached.
            assert_eq!(ask((gateway, 7000).into()).unwrap(), "hello");
        })
        .unwrap();
        // The machine itself still has it, or the test would pass without the rule.
        let direct = TcpStream::connect_timeout(&"169.254.169.254:80".parse().unwrap(), TIMEOUT);
        assert!(direct.is_ok());
        drop((metadata, loopback));
        for id in ["one", "two"] {
            Network::remove_id(&options, id).unwrap();
        }
    });
}

#[test]
fn without_host_access_the_host_is_out_of_reach() {
    let host = Host::new();
    let options = oci_hooks::network::NetworkOptions { host_access: false, ..host.options() };
    host.run(|| {
        let mut network = Network::create(&options, &request("closed")).unwrap();
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let _everywhere = TcpListener::bind("0.0.0.0:7000").unwrap();
        let gateway = network.host_address().unwrap();
        let reached = netns::within(&a.netns, || {
            TcpStream::connect_timeout(&(gateway, 7000).into(), SHORT).is_ok()
        });
        assert!(!reached.unwrap());
        Network::remove_id(&options, "closed").unwrap();
    });
}

#[test]
fn networks_made_at_once_do_not_clash() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let ids: Vec<_> = (0..8).map(|number| format!("p{number}")).collect();
        let addresses: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = ids
                .iter()
                .map(|id| {
                    scope.spawn(|| {
                        let mut network = Network::create(&options, &request(id)).unwrap();
                        let a = network.attach(&endpoint("a", &["80"])).unwrap();
                        (a.addresses[0], a.published[0].host_port)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (at, (address, port)) in addresses.iter().enumerate() {
            for other in &addresses[at + 1..] {
                assert!(*address != other.0 && *port != other.1, "{addresses:?}");
            }
        }
        for id in &ids {
            Network::remove_id(&options, id).unwrap();
        }
        assert_eq!(host.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn nothing_is_left_wherever_a_process_was_killed() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let mut network = Network::create(&options, &request("killed")).unwrap();
        network.attach(&endpoint("a", &["8084:80"])).unwrap();
        let dir = options.run.join("network/killed");
        // As if killed before the hub, the endpoint or the elements were made.
        netns::unpin(&dir.join("hub.netns")).unwrap();
        netns::unpin(&dir.join("a.netns")).unwrap();
        Network::remove_id(&options, "killed").unwrap();
        Network::remove_id(&options, "killed").unwrap();
        assert_eq!(host.leftovers(), Vec::<String>::new());
        // As if killed before the record was written.
        std::fs::create_dir(&dir).unwrap();
        Network::remove_id(&options, "killed").unwrap();
        assert!(!dir.exists());
        let error = Network::open(&options, "killed").unwrap_err();
        assert!(matches!(error, NetworkError::Unknown { .. }), "{error}");
    });
}

#[test]
fn an_error_leaves_nothing() {
    let host = Host::new();
    let options = host.options();
    host.run(|| {
        let status = std::process::Command::new("ip")
            .args(["link", "add", "ocihtaken", "type", "bridge"])
            .status();
        assert!(status.unwrap().success());
        let error = Network::create(&options, &request("taken")).unwrap_err();
        assert!(error.to_string().contains("make the bridge"), "{error}");
        assert!(!options.run.join("network/taken").exists());
    });
}

/// Waits until something is so.
fn eventually(what: &str, check: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !check() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}
