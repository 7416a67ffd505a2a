//! Checks that the firewall forwards traffic of jobs, by sending packets from a network like a job's.

use std::fs;

use oci_hooks_engine::network::{
    DroppingChain, ForwardResult, NetworkOptions, remove_test_network, test_forwarding,
};
use oci_hooks_files::error::chain;
use oci_hooks_host::removal::remove_tree;

use super::HostCheck;

const NAME: &str = "firewall";
const NAME6: &str = "firewall, IPv6";

/// Sends packets over IPv4 and IPv6, and leaves nothing behind. Runs only as root.
pub fn checks(options: &NetworkOptions) -> Vec<HostCheck> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let [v4, v6] = match try_in_run_directory(options) {
        Ok(results) => results,
        Err(problem) => {
            return vec![HostCheck::fail(NAME, problem, "fix this problem, then run doctor again")];
        }
    };
    [Some(check(&v4)), check6(&v6)].into_iter().flatten().collect()
}

/// Tests the firewall with the run directory of jobs, or a temporary one if that does not exist yet.
fn try_in_run_directory(options: &NetworkOptions) -> Result<[ForwardResult; 2], String> {
    if options.run.exists() {
        return test_forwarding(options).map_err(|error| chain(&error));
    }
    let mut name = options.run.clone().into_os_string();
    name.push("-doctor");
    let elsewhere = NetworkOptions { run: name.into(), ..options.clone() };
    let results = test_forwarding(&elsewhere).map_err(|error| chain(&error));
    let removed = remove_test_network(&elsewhere).map_err(|error| chain(&error));
    // If the trial's mounts could not be removed, the directory is kept.
    let _ = removed.is_ok().then(|| remove_tree(&elsewhere.run));
    results
}

fn check(result: &ForwardResult) -> HostCheck {
    match result {
        ForwardResult::Forwarded => HostCheck::ok(NAME, "lets traffic of jobs out"),
        ForwardResult::NoRoute => HostCheck::warn(
            NAME,
            "not checked: this host has no default route",
            "ip route add default via ADDRESS",
        ),
        result => HostCheck::fail_with(
            "they cannot reach anything outside",
            NAME,
            describe_drop(result, Iptables::V4),
            hint(result, Iptables::V4),
        ),
    }
}

fn check6(result: &ForwardResult) -> Option<HostCheck> {
    match result {
        // Without an IPv6 route, connections of jobs fail at once.
        ForwardResult::NoRoute => None,
        ForwardResult::Forwarded => Some(HostCheck::ok(NAME6, "lets traffic of jobs out")),
        result => Some(HostCheck::warn(
            NAME6,
            describe_drop(result, Iptables::V6),
            hint(result, Iptables::V6),
        )),
    }
}

/// The iptables command of an IP version.
#[derive(Clone, Copy, Debug)]
enum Iptables {
    V4,
    V6,
}

impl Iptables {
    fn name(self) -> &'static str {
        match self {
            Iptables::V4 => "iptables",
            Iptables::V6 => "ip6tables",
        }
    }

    /// Returns whether the kernel has legacy iptables rules, which nft does not show.
    fn is_legacy(self) -> bool {
        let names = match self {
            Iptables::V4 => "/proc/thread-self/net/ip_tables_names",
            Iptables::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "filter"))
    }
}

fn describe_drop(result: &ForwardResult, iptables: Iptables) -> String {
    let ForwardResult::Dropped(DroppingChain { family, table, chain, rule }) = result else {
        let name = iptables.name();
        return match iptables.is_legacy() {
            true => format!("{name}-legacy blocks traffic of jobs"),
            false => "traffic of jobs is dropped, but not by an nft table".to_owned(),
        };
    };
    let why = rule.as_ref().map_or("policy".to_owned(), |rule| format!("rule `{rule}`"));
    format!("chain {chain} of table {family} {table} blocks traffic of jobs, by its {why}")
}

/// Returns the command that makes the blocking firewall forward traffic of jobs.
fn hint(result: &ForwardResult, iptables: Iptables) -> String {
    let ForwardResult::Dropped(DroppingChain { family, table, chain, .. }) = result else {
        return match iptables.is_legacy() {
            true => accept(&format!("{}-legacy", iptables.name()), "FORWARD"),
            false => "look for BPF or tc filters, and let interfaces ocih* through".to_owned(),
        };
    };
    let iptables = iptables.name();
    match (*family, table.as_str()) {
        (_, "oci_hooks") => {
            "this host's uplink is a bridge or a similar device: name the interface in `uplinks` under [network]"
                .to_owned()
        }
        (_, "firewalld") => FIREWALLD.to_owned(),
        ("ip" | "ip6", "filter") if chain.starts_with("ufw") => {
            "ufw route allow in on ocih+".to_owned()
        }
        ("ip" | "ip6", "filter") => accept(iptables, chain),
        _ => format!(
            "nft insert rule {family} {table} {chain} iifname '\"ocih*\"' accept\n\
             nft insert rule {family} {table} {chain} oifname '\"ocih*\"' ct state established,related accept"
        ),
    }
}

fn accept(iptables: &str, chain: &str) -> String {
    format!(
        "{iptables} -I {chain} -i ocih+ -j ACCEPT\n\
         {iptables} -I {chain} -o ocih+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    )
}

/// Commands of firewalld that add a zone for the interfaces of jobs, and a policy that accepts all
/// traffic from this zone.
const FIREWALLD: &str = "firewall-cmd --permanent --new-zone=oci-hooks\n\
    firewall-cmd --permanent --zone=oci-hooks --add-interface=ocih+\n\
    firewall-cmd --permanent --new-policy=oci-hooks-out\n\
    firewall-cmd --permanent --policy=oci-hooks-out --add-ingress-zone=oci-hooks\n\
    firewall-cmd --permanent --policy=oci-hooks-out --add-egress-zone=ANY\n\
    firewall-cmd --permanent --policy=oci-hooks-out --set-target=ACCEPT\n\
    firewall-cmd --reload";

#[test]
fn hint_opens_the_blocking_firewall() {
    let hint = |family, table: &str, chain: &str| {
        let (table, chain) = (table.to_owned(), chain.to_owned());
        hint(
            &ForwardResult::Dropped(DroppingChain { family, table, chain, rule: None }),
            Iptables::V4,
        )
    };
    assert!(hint("ip", "filter", "DOCKER-USER").starts_with("iptables -I DOCKER-USER -i ocih+ "));
    assert!(hint("ip6", "filter", "ufw6-reject-forward").starts_with("ufw "));
    assert!(hint("inet", "firewalld", "filter_FORWARD").contains("firewall-cmd"));
    assert!(hint("inet", "mine", "out").starts_with("nft insert rule inet mine out iifname"));
    assert!(hint("inet", "oci_hooks", "forward").contains("uplinks"));
}
