//! Whether the firewall lets traffic of jobs out: tried, by a packet from a network as jobs have it.

use std::fs;

use super::Check;
use crate::network::{Barrier, NetworkOptions, Passage, remove_trial, try_passage};
use crate::sys::error::chain;
use crate::sys::removal::remove_tree;

/// What checks are called.
const NAME: &str = "firewall";
const NAME6: &str = "firewall, IPv6";

/// Sends packets by IPv4 and IPv6. Only root can; and it leaves nothing.
pub fn checks(options: &NetworkOptions) -> Vec<Check> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let [v4, v6] = match tried(options) {
        Ok(passages) => passages,
        Err(problem) => return vec![Check::fail(NAME, problem, "fix that, and run this again")],
    };
    [Some(check(&v4)), check6(&v6)].into_iter().flatten().collect()
}

/// Tries it where jobs have their records; elsewhere if there was no job yet, to leave nothing.
fn tried(options: &NetworkOptions) -> Result<[Passage; 2], String> {
    if options.run.exists() {
        return try_passage(options).map_err(|error| chain(&error));
    }
    let mut name = options.run.clone().into_os_string();
    name.push("-doctor");
    let elsewhere = NetworkOptions { run: name.into(), ..options.clone() };
    let passages = try_passage(&elsewhere).map_err(|error| chain(&error));
    let removed = remove_trial(&elsewhere).map_err(|error| chain(&error));
    // With mounts in it that could not be taken away it stays.
    let _ = removed.is_ok().then(|| remove_tree(&elsewhere.run));
    passages
}

fn check(passage: &Passage) -> Check {
    match passage {
        Passage::Open => Check::ok(NAME, "lets traffic of jobs out"),
        Passage::Nowhere => Check::warn(
            NAME,
            "not checked: this host has no default route",
            "ip route add default via ADDRESS",
        ),
        passage => Check::fail_with(
            "nothing outside can be reached from them",
            NAME,
            found(passage, Iptables::V4),
            hint(passage, Iptables::V4),
        ),
    }
}

fn check6(passage: &Passage) -> Option<Check> {
    match passage {
        // Jobs are told so at once.
        Passage::Nowhere => None,
        Passage::Open => Some(Check::ok(NAME6, "lets traffic of jobs out")),
        passage => {
            Some(Check::warn(NAME6, found(passage, Iptables::V6), hint(passage, Iptables::V6)))
        }
    }
}

/// Whose rules are looked at.
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

    /// Returns whether there are rules of the kind that nft neither shows nor follows.
    fn is_legacy(self) -> bool {
        let names = match self {
            Iptables::V4 => "/proc/thread-self/net/ip_tables_names",
            Iptables::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "filter"))
    }
}

fn found(passage: &Passage, iptables: Iptables) -> String {
    let Passage::Closed(Barrier { family, table, chain, rule }) = passage else {
        let name = iptables.name();
        return match iptables.is_legacy() {
            true => format!("{name}-legacy blocks traffic of jobs"),
            false => "traffic of jobs is dropped, by no table of nft".to_owned(),
        };
    };
    let why = rule.as_ref().map_or("policy".to_owned(), |rule| format!("rule `{rule}`"));
    format!("chain {chain} of table {family} {table} blocks traffic of jobs, by its {why}")
}

/// Returns the command that lets jobs out, of the firewall that blocks them.
fn hint(passage: &Passage, iptables: Iptables) -> String {
    let Passage::Closed(Barrier { family, table, chain, .. }) = passage else {
        return match iptables.is_legacy() {
            true => accept(&format!("{}-legacy", iptables.name()), "FORWARD"),
            false => {
                "look for programs that filter by BPF or tc, and have them let ocih* out".to_owned()
            }
        };
    };
    let iptables = iptables.name();
    match (*family, table.as_str()) {
        (_, "oci_hooks") => {
            "the world is behind a bridge or the like: name that as `uplinks` under [network]"
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

/// A zone of its own for what comes from jobs, and leave for it to go anywhere.
const FIREWALLD: &str = "firewall-cmd --permanent --new-zone=oci-hooks\n\
    firewall-cmd --permanent --zone=oci-hooks --add-interface=ocih+\n\
    firewall-cmd --permanent --new-policy=oci-hooks-out\n\
    firewall-cmd --permanent --policy=oci-hooks-out --add-ingress-zone=oci-hooks\n\
    firewall-cmd --permanent --policy=oci-hooks-out --add-egress-zone=ANY\n\
    firewall-cmd --permanent --policy=oci-hooks-out --set-target=ACCEPT\n\
    firewall-cmd --reload";

#[test]
fn whoever_keeps_jobs_in_is_told_how_to_let_them_out() {
    let hint = |family, table: &str, chain: &str| {
        let (table, chain) = (table.to_owned(), chain.to_owned());
        hint(&Passage::Closed(Barrier { family, table, chain, rule: None }), Iptables::V4)
    };
    assert!(hint("ip", "filter", "DOCKER-USER").starts_with("iptables -I DOCKER-USER -i ocih+ "));
    assert!(hint("ip6", "filter", "ufw6-reject-forward").starts_with("ufw "));
    assert!(hint("inet", "firewalld", "filter_FORWARD").contains("firewall-cmd"));
    assert!(hint("inet", "mine", "out").starts_with("nft insert rule inet mine out iifname"));
    assert!(hint("inet", "oci_hooks", "forward").contains("uplinks"));
}
