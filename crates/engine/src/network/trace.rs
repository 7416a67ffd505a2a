//! Follows a network's packets through the tables of nftables, by the kernel's traces (`nft monitor trace`).

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::error::NetworkError;
use super::firewall::{TABLE, nft, to_network_error};
use super::interface::InterfaceName;
use super::nfnetlink::{families, find};

// From linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
const GROUP: u32 = 9;
const MESSAGE: u16 = 10 << 8 | 17;
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 2;
const RULE_HANDLE: u16 = 3;
const KIND: u16 = 4;
const VERDICT: u16 = 5;
const VERDICT_CODE: u16 = 1;
const PROTOCOL: u16 = 15;
const POLICY: u16 = 16;
const KIND_POLICY: u32 = 1;
const KIND_RULE: u32 = 3;
const DROP: u32 = 0;

/// Numbers of nftables' families, and their names in nft.
const FAMILIES: [(u8, &str); 5] =
    [(1, "inet"), (2, "ip"), (5, "netdev"), (7, "bridge"), (IPV6, "ip6")];
const IPV6: u8 = 10;

/// Last chain of our table that forwarded packets pass.
const LAST: &str = "postrouting";

/// Result of sending packets to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardResult {
    Forwarded,
    /// The host has no route: no default route, or no forwarding of IPv6.
    NoRoute,
    /// A chain of nftables drops the packets.
    Dropped(DroppingChain),
    /// The packets do not reach the last chain of our table, and no chain of nftables reports a
    /// drop, as chains of iptables-legacy do not.
    Lost,
}

/// A chain that drops packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppingChain {
    /// Family of the table, as nft names it.
    pub family: &'static str,
    pub table: String,
    pub chain: String,
    /// Rule, as nft prints it; `None` for the policy of the chain.
    pub rule: Option<String>,
}

/// Kernel trace of a network's packets, until the network is removed.
pub struct PacketTrace {
    socket: Socket,
}

impl PacketTrace {
    /// Starts tracing the packets of a network, from the first chain on.
    pub fn start(link: &InterfaceName) -> Result<Self, NetworkError> {
        // The chain is named like the network's own one, and removed with it.
        nft(&format!(
            "add chain inet {TABLE} {link}\n\
             delete chain inet {TABLE} {link}\n\
             add chain inet {TABLE} {link} {{ type filter hook prerouting priority -350; }}\n\
             add rule inet {TABLE} {link} iifname \"{link}\" meta nftrace set 1\n"
        ))?;
        Ok(PacketTrace {
            socket: open_subscribed_socket().map_err(to_network_error("trace packets"))?,
        })
    }

    /// Returns the result for a packet, if the kernel has reported it.
    pub fn next(&self, is_ipv6: bool) -> Result<Option<ForwardResult>, NetworkError> {
        loop {
            let mut answers = Vec::with_capacity(32 << 10);
            match self.socket.recv(&mut answers, DONTWAIT) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(to_network_error("trace packets")(error)),
            }
            for (family, event) in families(&answers, MESSAGE) {
                if (number(event, PROTOCOL) == Some(u32::from(IPV6))) != is_ipv6 {
                    continue;
                }
                if let Some(end) = end(family, event) {
                    return end.map(Some);
                }
            }
        }
    }
}

const DONTWAIT: i32 = rustix::net::RecvFlags::DONTWAIT.bits().cast_signed();

fn open_subscribed_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.add_membership(GROUP)?;
    Ok(socket)
}

/// Returns the result if an event shows that a packet was forwarded or dropped; `None` for other
/// events.
fn end(family: u8, event: &[u8]) -> Option<Result<ForwardResult, NetworkError>> {
    let (table, chain) = (text(event, TABLE_NAME)?, text(event, CHAIN_NAME)?);
    if (table.as_str(), chain.as_str()) == (TABLE, LAST) {
        return Some(Ok(ForwardResult::Forwarded));
    }
    let family = FAMILIES.iter().find(|(number, _)| *number == family).map_or("", |(_, name)| name);
    let rule = match number(event, KIND)? {
        KIND_POLICY if number(event, POLICY) == Some(DROP) => None,
        KIND_RULE if find(event, VERDICT).and_then(|v| number(v, VERDICT_CODE)) == Some(DROP) => {
            let handle = find(event, RULE_HANDLE)?.try_into().ok().map(u64::from_be_bytes)?;
            match nft(&format!("list chain {family} {table} {chain}\n")) {
                Ok(listing) => Some(find_rule(&listing, handle)),
                Err(error) => return Some(Err(error)),
            }
        }
        _ => return None,
    };
    Some(Ok(ForwardResult::Dropped(DroppingChain { family, table, chain, rule })))
}

/// Returns the rule with this handle in a listing of nft.
fn find_rule(listing: &str, handle: u64) -> String {
    let end = format!(" # handle {handle}");
    let rule = listing.lines().find_map(|line| line.strip_suffix(&end));
    rule.map_or_else(|| format!("handle {handle}"), |rule| rule.trim().to_owned())
}

fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let bytes = find(attributes, kind)?;
    Some(String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned())
}

fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    find(attributes, kind)?.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_its_handle() {
        let listing =
            "table ip filter {\n\tchain FORWARD { # handle 2\n\t\tdrop # handle 12\n\t}\n}\n";
        assert_eq!(find_rule(listing, 12), "drop");
        assert_eq!(find_rule(listing, 1), "handle 1");
    }
}
