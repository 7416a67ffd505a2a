//! Creation and removal of networks: in parallel, after a kill, after an error.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use oci_hooks_engine::network::{Network, NetworkError, NetworkOptions, NetworkRequest};

use crate::network::host::{NetworkHost, shell};
use crate::network::{ask, endpoint, exists, join_address, run_in_network, serve_in};

/// Environment variable with the run directory, for the child to be killed.
const RUN: &str = "NETWORK_TEST_RUN";

#[test]
fn concurrently_created_networks_do_not_clash() {
    let host = NetworkHost::new();
    host.run(|| {
        let made: Vec<_> = std::thread::scope(|scope| {
            let make = |number| {
                let network = host.network(&format!("p{number}"));
                let a = network.attach(&endpoint("a", &["80"])).unwrap();
                (network, a)
            };
            let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || make(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let addresses: BTreeSet<_> = made.iter().map(|(_, a)| a.addresses[0]).collect();
        let ports: BTreeSet<_> = made.iter().map(|(_, a)| a.published[0].host_port).collect();
        assert_eq!((addresses.len(), ports.len()), (8, 8));
        for (_, a) in &made {
            serve_in(a);
            ask(&format!("127.0.0.1:{}", a.published[0].host_port)).unwrap();
        }
        for (network, _) in made {
            network.remove().unwrap();
        }
        host.expect_nothing_left();
    });
}

#[test]
fn concurrently_connected_containers_do_not_clash() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("at-once");
        let endpoints: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|number| {
                    let options = host.options();
                    // As in a separate process.
                    scope.spawn(move || {
                        let network = Network::open(&options, "at-once").unwrap();
                        network.attach(&endpoint(&format!("c{number}"), &["80"])).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for a in &endpoints {
            serve_in(a);
        }
        run_in_network(&endpoints[0], || {
            for other in &endpoints {
                ask(&join_address(other.addresses[0], 80)).unwrap();
                ask(&join_address(other.addresses[1], 80)).unwrap();
            }
        });
        network.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn network_accepts_many_containers_in_succession() {
    let host = NetworkHost::new();
    host.run(|| {
        let network = host.network("many");
        let stays = network.attach(&endpoint("stays", &[])).unwrap();
        let mut last = None;
        for number in 0..260 {
            let a = network.attach(&endpoint("step", &[])).unwrap();
            assert_ne!(a.addresses, stays.addresses, "container {number}");
            assert_ne!(Some(&a.addresses), last.as_ref(), "container {number}");
            last = Some(a.addresses);
            network.detach("step").unwrap();
            assert!(!exists(&a.netns));
        }
        network.detach("step").unwrap();
        network.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn killing_a_process_at_any_time_leaves_nothing() {
    let host = NetworkHost::new();
    let run = host.options().run;
    host.run(|| {
        // As with Docker.
        shell("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        let make = || {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "network::life::create_network_until_killed", "--quiet"])
                .env(RUN, &run)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        };
        let start = Instant::now();
        assert!(make().wait().unwrap().success());
        let whole = start.elapsed();
        Network::remove_id(&host.options(), "killed").unwrap();
        let mut phases = BTreeSet::new();
        for step in 0..40 {
            let mut process = make();
            // Spins instead of waiting, to stop at any moment.
            let end = Instant::now() + whole.mul_f64(f64::from(step) / 36.0);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            process.kill().unwrap();
            process.wait().unwrap();
            let dir = run.join("network/killed");
            phases.insert(std::fs::read_dir(&dir).map_or(0, |files| files.count()));
            Network::remove_id(&host.options(), "killed").unwrap();
            Network::remove_id(&host.options(), "killed").unwrap();
            host.expect_nothing_left();
        }
        assert!(phases.len() > 1, "{phases:?}");
    });
}

/// Not a test by itself: the process that [`killing_a_process_at_any_time_leaves_nothing`] kills.
#[test]
fn create_network_until_killed() {
    let Some(run) = std::env::var_os(RUN) else { return };
    let options = NetworkOptions::new(run);
    let network = Network::create(&options, &NetworkRequest::new("killed")).unwrap();
    for name in ["a", "b"] {
        network.attach(&endpoint(name, &["80", "81/udp"])).unwrap();
    }
    network.detach("a").unwrap();
}

#[test]
fn incomplete_and_unknown_networks_are_removed() {
    let host = NetworkHost::new();
    host.run(|| {
        let options = host.options();
        Network::remove_id(&options, "never").unwrap();
        // As after a kill before the record was written.
        let dir = options.run.join("network/killed");
        std::fs::create_dir_all(&dir).unwrap();
        let error = Network::open(&options, "killed").unwrap_err();
        assert!(matches!(error, NetworkError::Unknown { .. }), "{error}");
        Network::remove_id(&options, "killed").unwrap();
        assert!(!dir.exists());
        for id in ["", "..", "a/b", "-a"] {
            let error = Network::remove_id(&options, id).unwrap_err();
            assert!(matches!(error, NetworkError::Name { .. }), "{error}");
        }
    });
}

#[test]
fn error_leaves_nothing() {
    let host = NetworkHost::new();
    host.run(|| {
        let options = host.options();
        // Blocks the pin of the bridge namespace.
        let dir = options.run.join("network/taken");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("bridge.netns"), "").unwrap();
        let request = NetworkRequest::new("taken");
        Network::create(&options, &request).unwrap_err();
        assert!(!dir.exists());

        let network = Network::create(&options, &request).unwrap();
        let error = Network::create(&options, &request).unwrap_err();
        assert!(matches!(error, NetworkError::Exists { .. }), "{error}");
        // The error did not remove the first network.
        let a = network.attach(&endpoint("a", &[])).unwrap();
        let error = network.attach(&endpoint("a", &[])).unwrap_err();
        assert!(matches!(error, NetworkError::Attached { .. }), "{error}");
        assert!(exists(&a.netns));
        let error = network.attach(&endpoint("b", &["80", "192.0.2.77:80:80"])).unwrap_err();
        assert!(matches!(error, NetworkError::HostAddress { .. }), "{error}");
        std::fs::write(dir.join("c.container.netns"), "").unwrap();
        network.attach(&endpoint("c", &["80"])).unwrap_err();
        assert!(!exists(&dir.join("c.container.netns")));
        network.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn networks_work_on_a_host_without_ipv6() {
    let host = NetworkHost::new();
    host.run(|| {
        crate::network::host::set("net/ipv6/conf/default/disable_ipv6", "1");
        let network = host.network("four");
        let a = network.attach(&endpoint("a", &["8080:80"])).unwrap();
        assert_eq!(a.addresses.len(), 1);
        serve_in(&a);
        ask("127.0.0.1:8080").unwrap();
        network.remove().unwrap();
        host.expect_nothing_left();
    });
}
