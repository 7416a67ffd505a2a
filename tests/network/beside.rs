//! Networks of jobs beside Docker, ufw and others that have networks and rules on the host.

use std::net::IpAddr;

use oci_hooks::network::{
    Barrier, Endpoint, Network, NetworkOptions, NetworkRequest, Passage, try_passage,
};
use oci_hooks::sys::identity::Identity;
use oci_hooks::sys::netns;

use crate::host::{self, Host, ip, nft, set, shell};
use crate::support::dockerd::Dockerd;
use crate::support::program;
use crate::{ask, at, endpoint, expect_unreachable, serve, serve_in, within};

/// Docker and ufw leave it so, in both families.
const DROP: &str = "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP";

/// What all tables say, but for what is counted.
struct Rules(Vec<String>);

impl Rules {
    fn read() -> Self {
        let all = shell("nft --stateless list ruleset; iptables-save; ip6tables-save");
        // The time of the call.
        let lines = all.lines().filter(|line| !line.starts_with('#'));
        Rules(lines.map(|line| line.split(" [").next().unwrap().to_owned()).collect())
    }

    fn has(&self, line: &str) -> bool {
        self.0.iter().any(|found| found == line)
    }

    /// Expects that they are as they were.
    #[track_caller]
    fn expect_unchanged(&self) {
        let now = Rules::read();
        let more: Vec<_> = now.0.iter().filter(|line| !self.has(line)).collect();
        let less: Vec<_> = self.0.iter().filter(|line| !now.has(line)).collect();
        assert!(more.is_empty() && less.is_empty(), "more: {more:?}, less: {less:?}");
        assert!(self.0 == now.0, "in another order");
    }
}

fn world() -> [String; 2] {
    [host::WORLD, host::WORLD6].map(|address| at(address.parse().unwrap(), 80))
}

#[track_caller]
fn expect_world(container: &Endpoint) {
    within(container, || {
        for address in world() {
            ask(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
    });
}

fn without_host_access(host: &Host, id: &str) -> Network {
    let mut options = host.options();
    options.host_access = false;
    let request = NetworkRequest::new(id);
    Network::create(&options, &request).unwrap()
}

/// Does something in the network namespace of a process.
fn within_process<T: Send>(pid: u32, work: impl FnOnce() -> T + Send) -> T {
    let process = Identity::of(pid).unwrap();
    netns::within_process(process, work).unwrap().expect("it runs")
}

/// The addresses of a process's namespace that others may use.
fn addresses(pid: u32) -> Vec<IpAddr> {
    let lines = within_process(pid, || shell("ip -o address show scope global up"));
    let address = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok();
    let addresses: Vec<IpAddr> = lines.lines().filter_map(address).collect();
    assert_eq!(addresses.len(), 2, "{lines}");
    addresses
}

#[test]
fn containers_of_docker_are_not_reached_and_not_disturbed() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
    host.run(|| {
        // Who turns it on, as Docker does, has `FORWARD` drop.
        set("net/ipv4/ip_forward", "0");
        set("net/ipv6/conf/all/forwarding", "1");
        let docker = Dockerd::start_with_networks();
        let inner = ["network", "create", "--internal", "--ipv6", "--subnet", "fd00:d1c::/64"];
        docker.docker(&[&inner[..], &["inner"]].concat()).success();
        let plain = docker.run_idle("plain", &["--publish", "8080:80"]);
        let hidden = docker.run_idle("hidden", &["--network", "inner"]);
        for pid in [plain, hidden] {
            within_process(pid, || serve("[::]:80"));
        }
        let before = Rules::read();
        assert!(before.has(":FORWARD DROP"));

        let closed = without_host_access(&host, "closed");
        let open = host.network("open");
        let a = closed.attach(&endpoint("a", &["8081:80"])).unwrap();
        let b = open.attach(&endpoint("b", &[])).unwrap();
        serve_in(&a);
        let targets = [addresses(plain), addresses(hidden)].concat();
        let own = [host::ADDRESS, host::ADDRESS6].map(|address| address.parse().unwrap());
        for container in [&a, &b] {
            expect_world(container);
            within(container, || {
                targets.iter().for_each(|target| expect_unreachable(&at(*target, 80)));
            });
        }
        for address in own {
            // What Docker publishes is a service of the host.
            within(&a, || expect_unreachable(&at(address, 8080)));
            within(&b, || ask(&at(address, 8080)).unwrap());
            host.outside(|| {
                ask(&at(address, 8081)).unwrap();
                ask(&at(address, 8080)).unwrap();
            });
        }
        within_process(plain, || {
            world().iter().for_each(|address| drop(ask(address).unwrap().to_string()));
            a.addresses.iter().for_each(|address| expect_unreachable(&at(*address, 80)));
        });
        // That is what the rules are for; what Docker isolates stays so by its own, which come first.
        nft("flush chain inet oci_hooks forward");
        within(&a, || {
            for (number, target) in targets.iter().enumerate() {
                match number {
                    0 | 1 => drop(ask(&at(*target, 80)).unwrap().to_string()),
                    _ => expect_unreachable(&at(*target, 80)),
                }
            }
        });
        closed.remove().unwrap();
        expect_world(&b);
        open.remove().unwrap();
        before.expect_unchanged();
        within_process(plain, || ask(&world()[0]).unwrap());
    });
}

#[test]
fn behind_ufw_jobs_reach_the_world_but_what_the_admin_forbids() {
    let host = Host::new();
    host.outside(|| {
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
        let before = Rules::read();
        assert!(before.has(":FORWARD DROP"));
        let network = host.network("ufw");
        let a = network.attach(&endpoint("a", &["8080:80"])).unwrap();
        serve_in(&a);
        expect_world(&a);
        within(&a, || expect_unreachable(&at(host::WORLD.parse().unwrap(), 81)));
        host.outside(|| ask(&at(host::ADDRESS.parse().unwrap(), 8080)).unwrap());
        network.remove().unwrap();
        before.expect_unchanged();
    });
}

/// What others have on a host, as they publish it: rules, and the interface that leads to their guests.
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
fn guests_of_others_are_not_reached_whatever_their_rules_accept() {
    for (interface, kind, script) in OTHERS {
        let host = Host::new();
        host.outside(|| serve("[::]:80"));
        host.run(|| {
            set("net/ipv6/conf/all/forwarding", "1");
            let guest = host.guest(interface, kind);
            netns::within(&guest, || serve("[::]:80")).unwrap();
            shell(&format!("{DROP}; {script}"));
            let before = Rules::read();
            let network = host.network("beside");
            let a = network.attach(&endpoint("a", &[])).unwrap();
            expect_world(&a);
            let targets = host::GUEST.map(|address| at(address.parse().unwrap(), 80));
            // The host itself gets there, or this would pass without the rule.
            for target in &targets {
                ask(target).unwrap_or_else(|error| panic!("{interface} {target}: {error}"));
                within(&a, || expect_unreachable(target));
            }
            network.remove().unwrap();
            before.expect_unchanged();
        });
    }
}

#[test]
fn interfaces_that_the_admin_names_lead_out_too() {
    let host = Host::new();
    host.run(|| {
        let guest = host.guest("br1", "bridge");
        netns::within(&guest, || serve("[::]:80")).unwrap();
        let target = at(host::GUEST[0].parse().unwrap(), 80);
        let mut options = host.options();
        options.uplinks = vec!["br1".parse().unwrap()];
        let request = NetworkRequest::new("named");
        let named = Network::create(&options, &request).unwrap();
        let other = host.network("other");
        let a = named.attach(&endpoint("a", &[])).unwrap();
        let b = other.attach(&endpoint("b", &[])).unwrap();
        within(&a, || ask(&target).unwrap());
        within(&b, || expect_unreachable(&target));
        // The table is made anew with all that was in it.
        nft("delete table inet oci_hooks");
        let third = host.network("third");
        within(&a, || ask(&target).unwrap());
        within(&b, || expect_unreachable(&target));
        for network in [named, other, third] {
            network.remove().unwrap();
        }
        host.expect_nothing_left();
    });
}

#[test]
fn a_bridge_that_the_hosts_default_route_goes_by_leads_out() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        // As on hosts of virtual machines.
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
fn networks_of_two_programs_that_come_and_go_at_once_keep_what_the_others_need() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
    host.run(|| {
        set("net/ipv6/conf/all/forwarding", "1");
        shell(DROP);
        let before = Rules::read();
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
fn rules_of_the_admin_for_jobs_stay() {
    let host = Host::new();
    host.run(|| {
        shell(DROP);
        shell("iptables -I FORWARD -i ocih+ -j ACCEPT");
        let before = Rules::read();
        let network = host.network("admin");
        assert_eq!(nft("list chain ip filter FORWARD").matches("oci-hooks").count(), 2);
        host.network("second").remove().unwrap();
        assert_eq!(nft("list chain ip filter FORWARD").matches("oci-hooks").count(), 2);
        network.remove().unwrap();
        before.expect_unchanged();
    });
}

#[test]
fn a_table_of_an_older_version_is_replaced() {
    let host = Host::new();
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
fn who_does_not_let_jobs_out_is_found() {
    let host = Host::new();
    host.run(|| {
        let before = Rules::read();
        let passage = || try_passage(&host.options()).unwrap();
        let barrier = |family, table: &str, chain: &str, rule: Option<&str>| {
            let (table, chain) = (table.to_owned(), chain.to_owned());
            Passage::Closed(Barrier { family, table, chain, rule: rule.map(str::to_owned) })
        };
        // As one leaves it that was killed.
        host.network("doctor");
        assert_eq!(passage(), [Passage::Open, Passage::Nowhere]);
        set("net/ipv6/conf/all/forwarding", "1");
        assert_eq!(passage(), [Passage::Open, Passage::Open]);
        // A network of a job goes on meanwhile.
        let network = host.network("job");
        assert_eq!(passage(), [Passage::Open, Passage::Open]);
        network.remove().unwrap();
        before.expect_unchanged();

        // As Docker and ufw have it: that is answered for.
        shell(DROP);
        assert_eq!(passage(), [Passage::Open, Passage::Open]);
        // As RHEL's iptables have it.
        shell("iptables -P FORWARD ACCEPT; iptables -A FORWARD -j REJECT");
        let found = passage();
        assert!(
            matches!(&found[0], Passage::Closed(Barrier { family: "ip", table, chain, rule: Some(rule) })
                if table == "filter" && chain == "FORWARD" && rule.contains("reject")),
            "{found:?}"
        );
        assert_eq!(found[1], Passage::Open);
        shell("iptables -F FORWARD");
        // As firewalld and admins have it.
        nft("table inet mine { chain forward { type filter hook forward priority 10; policy drop; }; }");
        let policy = barrier("inet", "mine", "forward", None);
        assert_eq!(passage(), [policy.clone(), policy]);
        nft("delete table inet mine");
        ip("route del default");
        assert_eq!(passage()[0], Passage::Nowhere);
        host.expect_nothing_left();
    });
}
