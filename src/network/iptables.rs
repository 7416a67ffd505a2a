//! iptables' chain `FORWARD`, which others share with us: Docker and ufw have it drop what no rule of it
//! accepts.
//!
//! There, what comes from jobs and goes to them is accepted at the end, after all that its owners and the
//! admin say: only the policy is answered for. What jobs must not reach our own table refuses, whatever is
//! accepted here. Where nothing is dropped by policy no rule is made.

use std::fmt::Write as _;
use std::io;

use super::nftables::{IPV4, IPV6, Nftables, Rule};
use super::record::LINK;

const TABLE: &str = "filter";
const CHAIN: &str = "FORWARD";

/// What tells our rules from those that an admin makes for the same interfaces. iptables shows it.
const COMMENT: &str = "oci-hooks";

/// A rule, and where it is.
pub(super) type Place = (u8, &'static str, &'static str, Rule);

/// Returns commands for nft that make the rules which are missing.
pub(super) fn missing(nftables: &Nftables) -> io::Result<String> {
    let mut script = String::new();
    for (family, name) in [(IPV4, "ip"), (IPV6, "ip6")] {
        if !nftables.drops(family, TABLE, CHAIN)? || !ours_of(nftables, family)?.is_empty() {
            continue;
        }
        for side in ["iifname", "oifname"] {
            let rule = format!("{side} \"{LINK}*\" accept comment \"{COMMENT}\"");
            writeln!(script, "add rule {name} {TABLE} {CHAIN} {rule}").expect("a string takes it");
        }
    }
    Ok(script)
}

/// Returns the rules that are ours.
pub(super) fn ours(nftables: &Nftables) -> io::Result<Vec<Place>> {
    let mut rules = ours_of(nftables, IPV4)?;
    rules.extend(ours_of(nftables, IPV6)?);
    Ok(rules)
}

fn ours_of(nftables: &Nftables, family: u8) -> io::Result<Vec<Place>> {
    let has = |rule: &Rule, word: &str| {
        rule.content.windows(word.len()).any(|bytes| bytes == word.as_bytes())
    };
    let rules = nftables.rules(family, TABLE, CHAIN)?;
    let ours = rules.into_iter().filter(|rule| has(rule, LINK) && has(rule, COMMENT));
    Ok(ours.map(|rule| (family, TABLE, CHAIN, rule)).collect())
}
