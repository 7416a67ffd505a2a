//! Networks of jobs beside Docker, ufw and other programs with networks and rules on the host.

use std::net::IpAddr;

use oci_hooks_engine::network::{
    DroppingChain, ForwardResult, Network, NetworkEndpoint, NetworkOptions, NetworkRequest,
    test_forwarding,
};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::netns;
use oci_hooks_testsupport::dockerd::Dockerd;
use oci_hooks_testsupport::program;

use crate::network::host::{self, NetworkHost, ip, nft, set, shell};
use crate::network::{
    ask, endpoint, expect_unreachable, join_address, run_in_network, serve, serve_in,
};

/// Policy of Docker and ufw, in both families.
const DROP: &str = "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP";

/// Rules of all tables, without counters.
struct RuleSnapshot(Vec<String>);

impl RuleSnapshot {
    fn read() -> Self {
        let all = shell("nft --stateless list ruleset; iptables-save; ip6tables-save");
        // Comments have the time of the call.
        let lines = all.lines().filter(|line| !line.starts_with('#'));
        RuleSnapshot(lines.map(|line| line.split(" [").next().unwrap().to_owned()).collect())
    }

    fn has(&self, line: &str) -> bool {
        self.0.iter().any(|found| found == line)
    }

    /// Expects that the rules have not changed.
    #[track_caller]
    fn expect_unchanged(&self) {
        let now = RuleSnapshot::read();
        let more: Vec<_> = now.0.iter().filter(|line| !self.has(line)).collect();
        let less: Vec<_> = self.0.iter().filter(|line| !now.has(line)).collect();
        assert!(more.is_empty() && less.is_empty(), "more: {more:?}, less: {less:?}");
        assert!(self.0 == now.0, "in another order");
    }
}

fn world() -> [String; 2] {
    [host::WORLD, host::WORLD6].map(|address| join_address(address.parse().unwrap(), 80))
}

#[track_caller]
fn expect_world(container: &NetworkEndpoint) {
    run_in_network(container, || {
        for address in world() {
            ask(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
    });
}

fn create_isolated_network(host: &NetworkHost, id: &str) -> Network {
    let mut options = host.options();
    options.host_access = false;
    let request = NetworkRequest::new(id);
    Network::create(&options, &request).unwrap()
}

/// Calls `work` in the network namespace of a process.
fn run_in_process_network<T: Send>(pid: u32, work: impl FnOnce() -> T + Send) -> T {
    let process = ProcessIdentity::of(pid).unwrap();
    netns::run_in_process_namespace(process, work).unwrap().expect("it runs")
}

/// Returns the global addresses of a process's namespace.
fn addresses(pid: u32) -> Vec<IpAddr> {
    let lines = run_in_process_network(pid, || shell("ip -o address show scope global up"));
    let address = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok();
    let addresses: Vec<IpAddr> = lines.lines().filter_map(address).collect();
    assert_eq!(addresses.len(), 2, "{lines}");
    addresses
}

#[test]
fn docker_containers_are_unreachable_and_unaffected() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        // Docker sets `FORWARD` to drop only if it enables forwarding itself.
        set("net/ipv4/ip_forward", "0");
        set("net/ipv6/conf/all/forwarding", "1");
        let docker = Dockerd::start_with_networks();
        let inner = ["network", "create", "--internal", "--ipv6", "--subnet", "fd00:d1c::/64"];
        docker.docker(&[&inner[..], &["inner"]].concat()).success();
        let plain = docker.run_idle("plain", &["--publish", "8080:80"]);
        let hidden = docker.run_idle("hidden", &["--network", "inner"]);
        for pid in [plain, hidden] {
            run_in_process_network(pid, || serve("[::]:80"));
        }
        let before = RuleSnapshot::read();
        assert!(before.has(":FORWARD DROP"));

        let closed = create_isolated_network(&host, "closed");
        let open = host.network("open");
        let a = closed.attach(&endpoint("a", &["8081:80"])).unwrap();
        let b = open.attach(&endpoint("b", &[])).unwrap();
        serve_in(&a);
        let targets = [addresses(plain), addresses(hidden)].concat();
        let own = [host::ADDRESS, host::ADDRESS6].map(|address| address.parse().unwrap());
        for container in [&a, &b] {
            expect_world(container);
            run_in_network(container, || {
                targets.iter().for_each(|target| expect_unreachable(&join_address(*target, 80)));
            });
        }
        for address in own {
            // A port published by Docker is a service of the host.
            run_in_network(&a, || expect_unreachable(&join_address(address, 8080)));
            run_in_network(&b, || ask(&join_address(address, 8080)).unwrap());
            host.run_outside(|| {
                ask(&join_address(address, 8081)).unwrap();
                ask(&join_address(address, 8080)).unwrap();
            });
        }
        run_in_process_network(plain, || {
            world().iter().for_each(|address| drop(ask(address).unwrap().to_string()));
            a.addresses.iter().for_each(|address| expect_unreachable(&join_address(*address, 80)));
        });
        // Without our rules, Docker's containers are reached, except those isolated by Docker's own rules,
        // which come first.
        nft("flush chain inet oci_hooks forward");
        run_in_network(&a, || {
            for (number, target) in targets.iter().enumerate() {
                match number {
                    0 | 1 => drop(ask(&join_address(*target, 80)).unwrap().to_string()),
                    _ => expect_unreachable(&join_address(*target, 80)),
                }
            }
        });
        closed.remove().unwrap();
        expect_world(&b);
        open.remove().unwrap();
        before.expect_unchanged();
        run_in_process_network(plain, || ask(&world()[0]).unwrap());
    });
}

#[test]
fn jobs_behind_ufw_reach_only_allowed_hosts() {
    let host = NetworkHost::new();
    host.run_outside(|| {
        serve("[::]:80");
        serve("[::]:81");
    });
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        let data = program::temporary_directory();
        program::find("ufw");
        shell(&format!(
            "cd {}; mkdir -p etc/default; cp -r /etc/ufw etc/; cp /etc/default/ufw etc/default/; \
             sed -i s/ENABLED=no/ENABLED=yes/ etc/ufw/ufw.conf; \
             sed -i s/^IPT_SYSCTL/#/ etc/default/ufw; /lib/ufw/ufw-init --datadir $PWD start; \
             iptables -A ufw-user-forward -p tcp --dport 81 -j REJECT",
            data.path().display()
        ));
        let before = RuleSnapshot::read();
        assert!(before.has(":FORWARD DROP"));
        let network = host.network("ufw");
        let a = network.attach(&endpoint("a", &["8080:80"])).unwrap();
        serve_in(&a);
        expect_world(&a);
        run_in_network(&a, || expect_unreachable(&join_address(host::WORLD.parse().unwrap(), 81)));
        host.run_outside(|| ask(&join_address(host::ADDRESS.parse().unwrap(), 8080)).unwrap());
        network.remove().unwrap();
        before.expect_unchanged();
    });
}

/// Networks of other programs: interface to the guests, kind of the interface, and the documented rules.
const OTHERS: [(&str, &str, &str); 5] = [
    (
        "virbr0",
        "bridge",
        "for t in iptables ip6tables; do for c in FWX FWI FWO; do \
         $t -N LIBVIRT_$c; $t -A FORWARD -j LIBVIRT_$c; done; \
         $t -A LIBVIRT_FWX -i virbr0 -o virbr0 -j ACCEPT; \
         $t -A LIBVIRT_FWI -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; \
         $t -A LIBVIRT_FWI -o virbr0 -j REJECT; $t -A LIBVIRT_FWO -i virbr0 -j ACCEPT; done",
    ),
    (
        "incusbr0",
        "bridge",
        "nft 'table inet incus { chain fwd.incusbr0 { type filter hook forward priority 0; \
         ip version 4 oifname incusbr0 accept; iifname incusbr0 accept; }; }'",
    ),
    (
        "podman1",
        "bridge",
        "iptables -N NETAVARK_FORWARD; iptables -A FORWARD -j NETAVARK_FORWARD; \
         iptables -A NETAVARK_FORWARD -d 203.0.113.0/24 -m conntrack --ctstate RELATED,ESTABLISHED \
         -j ACCEPT; iptables -A NETAVARK_FORWARD -s 203.0.113.0/24 -j ACCEPT",
    ),
    (
        "cali0123456789a",
        "veth",
        "for t in iptables ip6tables; do $t -N KUBE-FORWARD; $t -A FORWARD -j KUBE-FORWARD; \
         $t -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP; \
         $t -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT; \
         $t -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; done",
    ),
    ("br-0123456789ab", "bridge", "true"),
];

#[test]
fn guests_of_others_are_unreachable_whatever_their_rules() {
    for (interface, kind, script) in OTHERS {
        let host = NetworkHost::new();
        host.run_outside(|| serve("[::]:80"));
        host.run(|| {
            set("net/ipv6/conf/all/forwarding", "1");
            let guest = host.guest(interface, kind);
            netns::run_in_namespace(&guest, || serve("[::]:80")).unwrap();
            shell(&format!("{DROP}; {script}"));
            let before = RuleSnapshot::read();
            let network = host.network("beside");
            let a = network.attach(&endpoint("a", &[])).unwrap();
            expect_world(&a);
            let targets = host::GUEST.map(|address| join_address(address.parse().unwrap(), 80));
            // Without our rule, the guest is reachable, as it is from the host.
            for target in &targets {
                ask(target).unwrap_or_else(|error| panic!("{interface} {target}: {error}"));
                run_in_network(&a, || expect_unreachable(target));
            }
            network.remove().unwrap();
            before.expect_unchanged();
        });
    }
}

#[test]
fn interfaces_named_by_the_admin_are_uplinks_too() {
    let host = NetworkHost::new();
    host.run(|| {
        let guest = host.guest("br1", "bridge");
        netns::run_in_namespace(&guest, || serve("[::]:80")).unwrap();
        let target = join_address(host::GUEST[0].parse().unwrap(), 80);
        let mut options = host.options();
        options.uplinks = vec!["br1".parse().unwrap()];
        let request = NetworkRequest::new("named");
        let named = Network::create(&options, &request).unwrap();
        let other = host.network("other");
        let a = named.attach(&endpoint("a", &[])).unwrap();
        let b = other.attach(&endpoint("b", &[])).unwrap();
        run_in_network(&a, || ask(&target).unwrap());
        run_in_network(&b, || expect_unreachable(&target));
        // The table is created again with all its elements.
        nft("delete table inet oci_hooks");
        let third = host.network("third");
        run_in_network(&a, || ask(&target).unwrap());
        run_in_network(&b, || expect_unreachable(&target));
        for network in [named, other, third] {
            network.remove().unwrap();
        }
        host.expect_nothing_left();
    });
}

#[test]
fn bridge_of_the_default_route_is_an_uplink() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        // As on hosts with virtual machines.
        for command in [
            "link add br0 type bridge".to_owned(),
            format!("address del {}/24 dev outside", host::ADDRESS),
            format!("address del {}/64 dev outside", host::ADDRESS6),
            "link set outside master br0".to_owned(),
            "link set br0 up".to_owned(),
            format!("address add {}/24 dev br0", host::ADDRESS),
            format!("address add {}/64 dev br0 nodad", host::ADDRESS6),
            format!("route add default via {}", host::WORLD),
            format!("-6 route replace default via {}", host::WORLD6),
        ] {
            ip(&command);
        }
        let network = host.network("bridge");
        let a = network.attach(&endpoint("a", &[])).unwrap();
        expect_world(&a);
        network.remove().unwrap();
    });
}

#[test]
fn concurrent_networks_of_two_programs_keep_shared_rules() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        shell(DROP);
        let before = RuleSnapshot::read();
        let mut other_program = NetworkOptions::new(host.options().run.join("other"));
        other_program.pool = "10.214.0.0/16".parse().unwrap();
        other_program.pool6 = "fd6f:6369:6d67::/48".parse().unwrap();
        std::fs::create_dir_all(&other_program.run).unwrap();
        std::thread::scope(|scope| {
            for number in 0..10 {
                let options = if number % 2 == 0 { host.options() } else { other_program.clone() };
                scope.spawn(move || {
                    let request = NetworkRequest::new(format!("n{number}"));
                    for _ in 0..5 {
                        let network = Network::create(&options, &request).unwrap();
                        let a = network.attach(&endpoint("a", &[])).unwrap();
                        expect_world(&a);
                        network.remove().unwrap();
                    }
                });
            }
        });
        before.expect_unchanged();
    });
}

#[test]
fn rules_of_the_admin_for_jobs_are_kept() {
    let host = NetworkHost::new();
    host.run(|| {
        shell(DROP);
        shell("iptables -I FORWARD -i ocih+ -j ACCEPT");
        let before = RuleSnapshot::read();
        let network = host.network("admin");
        assert_eq!(nft("list chain ip filter FORWARD").matches("oci-hooks").count(), 2);
        host.network("second").remove().unwrap();
        assert_eq!(nft("list chain ip filter FORWARD").matches("oci-hooks").count(), 2);
        network.remove().unwrap();
        before.expect_unchanged();
    });
}

#[test]
fn table_of_an_older_version_is_replaced() {
    let host = NetworkHost::new();
    host.run(|| {
        nft("table inet oci_hooks { chain version_1 { }; chain input { }; }");
        let network = host.network("new");
        let table = shell("nft list table inet oci_hooks");
        assert!(!table.contains("version_1") && table.contains("prerouting_raw"), "{table}");
        network.remove().unwrap();
        host.expect_nothing_left();
    });
}

#[test]
fn blocking_firewall_is_identified() {
    let host = NetworkHost::new();
    host.run(|| {
        let before = RuleSnapshot::read();
        let result = || test_forwarding(&host.options()).unwrap();
        let barrier = |family, table: &str, chain: &str, rule: Option<&str>| {
            let (table, chain) = (table.to_owned(), chain.to_owned());
            ForwardResult::Dropped(DroppingChain { family, table, chain, rule: rule.map(str::to_owned) })
        };
        // Left by a killed process.
        host.network("doctor");
        assert_eq!(result(), [ForwardResult::Forwarded, ForwardResult::NoRoute]);
        set("net/ipv6/conf/all/forwarding", "1");
        assert_eq!(result(), [ForwardResult::Forwarded, ForwardResult::Forwarded]);
        // The network of a job is not disturbed.
        let network = host.network("job");
        assert_eq!(result(), [ForwardResult::Forwarded, ForwardResult::Forwarded]);
        network.remove().unwrap();
        before.expect_unchanged();

        // As with Docker and ufw, for which our rules accept packets.
        shell(DROP);
        assert_eq!(result(), [ForwardResult::Forwarded, ForwardResult::Forwarded]);
        // As in RHEL's iptables.
        shell("iptables -P FORWARD ACCEPT; iptables -A FORWARD -j REJECT");
        let found = result();
        assert!(
            matches!(&found[0], ForwardResult::Dropped(DroppingChain { family: "ip", table, chain, rule: Some(rule) })
                if table == "filter" && chain == "FORWARD" && rule.contains("reject")),
            "{found:?}"
        );
        assert_eq!(found[1], ForwardResult::Forwarded);
        shell("iptables -F FORWARD");
        // As with firewalld or an admin's table.
        nft("table inet mine { chain forward { type filter hook forward priority 10; policy drop; }; }");
        let policy = barrier("inet", "mine", "forward", None);
        assert_eq!(result(), [policy.clone(), policy]);
        nft("delete table inet mine");
        ip("route del default");
        assert_eq!(result()[0], ForwardResult::NoRoute);
        host.expect_nothing_left();
    });
}
