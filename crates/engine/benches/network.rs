//! Times of creating and removing a network, compared with `ip`. Needs root, `ip` and nft; everything happens in
//! a separate network namespace.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints and may panic")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use oci_hooks_engine::network::{
    EndpointRequest, Network, NetworkOptions, NetworkRequest, PortMapping,
};
use oci_hooks_host::netns;
use oci_hooks_testsupport::measure::{LapTimes, median_ms};

const ROUNDS: usize = 31;

fn main() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let host = dir.path().join("host");
    netns::create(&host, None, || {
        ip("link set lo up");
        let options = options(dir.path());
        println!("the only network of the host, which makes the table of the firewall:");
        measure_ours(&options);
        let request = NetworkRequest::new("other");
        let other = Network::create(&options, &request).unwrap();
        println!("beside another one:");
        measure_ours(&options);
        other.remove().unwrap();
        batch();
    })
    .unwrap();
    netns::unpin(&host).unwrap();
}

fn options(dir: &Path) -> NetworkOptions {
    NetworkOptions::new(dir.join("run"))
}

fn measure_ours(options: &NetworkOptions) {
    let published = PortMapping::parse("80").unwrap();
    let mut times = [const { Vec::new() }; 5];
    for round in 0..=ROUNDS {
        let id = format!("bench{round}");
        let attach = |network: &Network, name: &str, ports: &[PortMapping]| {
            let mut request = EndpointRequest::new(name);
            request.ports = ports.to_vec();
            network.attach(&request).unwrap();
        };
        let mut laps = LapTimes::start();
        let network = Network::create(options, &NetworkRequest::new(id.as_str())).unwrap();
        laps.lap();
        attach(&network, "first", &[]);
        laps.lap();
        attach(&network, "second", &[]);
        laps.lap();
        attach(&network, "third", &published);
        laps.lap();
        Network::remove_id(options, &id).unwrap();
        laps.lap();
        // Round 0 starts with cold caches.
        if round > 0 {
            for (times, lap) in times.iter_mut().zip(laps.times) {
                times.push(lap);
            }
        }
    }
    let [create, first, second, third, remove] = times.map(|times| median_ms(&times));
    println!("create {create:.2} ms, attach {first:.2} ms: {:.2} ms", create + first);
    println!("a further attach {second:.2} ms, one with a published port {third:.2} ms");
    println!("remove, with three containers and a published port {remove:.2} ms");
}

/// Creates the same links with batches of `ip`: on the host, in the bridge namespace and in the container.
fn batch() {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = |what: &str| format!("ocihbench{what}{round}");
        let (bridge, container, link) = (name("h"), name("c"), format!("ob{round}"));
        let mut laps = LapTimes::start();
        run_batch(&[], &format!("netns add {bridge}\nnetns add {container}\n"));
        run_batch(
            &["-n", &bridge],
            &format!(
                "link add bridge type bridge\nlink set bridge up\n\
                 link add port type veth peer name eth0 netns {container}\n\
                 link set port master bridge up\n\
                 link add uplink type veth peer name {link} netns {}\n\
                 link set uplink master bridge up\n",
                // The namespace of this thread.
                rustix::thread::gettid().as_raw_nonzero()
            ),
        );
        run_batch(
            &["-n", &container],
            "link set lo up\naddress add 10.99.0.2/24 dev eth0\naddress add fd99::2/64 dev eth0 nodad\n\
             link set eth0 up\nroute add default via 10.99.0.1\n",
        );
        run_batch(
            &[],
            &format!(
                "address add 10.99.0.1/24 dev {link}\naddress add fd99::1/64 dev {link} nodad\nlink set {link} up\n"
            ),
        );
        laps.lap();
        run_batch(&[], &format!("netns del {container}\nnetns del {bridge}\nlink del {link}\n"));
        laps.lap();
        up.push(laps.times[0]);
        down.push(laps.times[1]);
    }
    println!("ip: up {:.2} ms, down {:.2} ms", median_ms(&up), median_ms(&down));
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success());
}

fn run_batch(arguments: &[&str], commands: &str) {
    let mut child = Command::new("ip")
        .args(arguments)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{commands}");
}
