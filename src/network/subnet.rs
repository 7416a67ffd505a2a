//! Which addresses a network has.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet<A> {
    /// The first address.
    address: A,
    /// How many bits all of them share.
    prefix: u8,
}

/// A text that is no block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no block of addresses: write one such as {example}, of at most {longest} bits"
)]
pub struct SubnetError {
    text: String,
    example: &'static str,
    longest: u8,
}

/// The block of each network: enough for 253 containers and the host.
const PREFIX: u8 = 24;
const PREFIX6: u8 = 64;

/// How many containers a network has addresses for.
pub(super) const CONTAINERS: u32 = 253;

impl Default for Subnet<Ipv4Addr> {
    fn default() -> Self {
        // Neither Docker's nor podman's, libvirt's or Kubernetes' usual ones.
        Subnet { address: Ipv4Addr::new(10, 213, 0, 0), prefix: 16 }
    }
}

impl Default for Subnet<Ipv6Addr> {
    fn default() -> Self {
        Subnet { address: Ipv6Addr::new(0xfd6f, 0x6369, 0x686b, 0, 0, 0, 0, 0), prefix: 48 }
    }
}

impl<A: fmt::Display> fmt::Display for Subnet<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Subnet<Ipv4Addr> {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let error =
            || SubnetError { text: text.to_owned(), example: "10.213.0.0/16", longest: PREFIX };
        let (address, prefix) = parse::<Ipv4Addr>(text, PREFIX).ok_or_else(error)?;
        Ok(Subnet { address: Ipv4Addr::from(u32::from(address) & mask(prefix)), prefix })
    }
}

impl FromStr for Subnet<Ipv6Addr> {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let example = "fd00:1234:5678::/48";
        let error = || SubnetError { text: text.to_owned(), example, longest: PREFIX6 };
        let (address, prefix) = parse::<Ipv6Addr>(text, PREFIX6).ok_or_else(error)?;
        Ok(Subnet { address: Ipv6Addr::from(u128::from(address) & mask6(prefix)), prefix })
    }
}

fn parse<A: FromStr>(text: &str, longest: u8) -> Option<(A, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| (1..=longest).contains(prefix))?;
    Some((address.parse().ok()?, prefix))
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl Subnet<Ipv4Addr> {
    /// Returns how many networks there are in the pool.
    pub(super) fn count(self) -> u32 {
        1 << (PREFIX - self.prefix)
    }

    /// Says whether the network with this number shares an address with one of these.
    pub(super) fn clashes(self, number: u32, routes: &[(Ipv4Addr, u8)]) -> bool {
        let own = u32::from(self.address) + (number << (32 - PREFIX));
        routes.iter().any(|&(address, prefix)| {
            let common = mask(prefix.min(PREFIX));
            u32::from(address) & common == own & common
        })
    }
}

impl Subnet<Ipv6Addr> {
    /// Returns how many networks there are in the pool, if not too many to count.
    pub(super) fn count(self) -> u32 {
        1_u32.checked_shl(u32::from(PREFIX6 - self.prefix)).unwrap_or(u32::MAX)
    }

    /// Says whether the network with this number shares an address with one of these.
    pub(super) fn clashes(self, number: u32, routes: &[(Ipv6Addr, u8)]) -> bool {
        let own = u128::from(self.address) + (u128::from(number) << (128 - PREFIX6));
        routes.iter().any(|&(address, prefix)| {
            let common = mask6(prefix.min(PREFIX6));
            u128::from(address) & common == own & common
        })
    }
}

/// An address in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) v4: Ipv4Addr,
    pub(super) v6: Ipv6Addr,
}

impl Pair {
    /// Returns a hardware address for whoever has these: a locally administered one.
    pub(super) fn mac(self) -> [u8; 6] {
        let [a, b, c, d] = self.v4.octets();
        [0x0a, 0x6f, a, b, c, d]
    }

    /// Returns the address of version 4 that a hardware address was made of.
    pub(super) fn v4_of(mac: [u8; 6]) -> Option<Ipv4Addr> {
        let [0x0a, 0x6f, a, b, c, d] = mac else { return None };
        Some(Ipv4Addr::from([a, b, c, d]))
    }
}

/// The addresses of one network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    v4: u32,
    v6: u128,
}

impl Plan {
    pub(super) const PREFIX: u8 = PREFIX;
    pub(super) const PREFIX6: u8 = PREFIX6;

    /// Returns the addresses of the network with this number.
    pub(super) fn new(pool: Subnet<Ipv4Addr>, pool6: Subnet<Ipv6Addr>, number: u32) -> Self {
        Plan {
            v4: u32::from(pool.address) + (number << (32 - PREFIX)),
            v6: u128::from(pool6.address) + (u128::from(number) << (128 - PREFIX6)),
        }
    }

    /// Returns those of the network that an address of version 4 is in, by the pools of now.
    pub(super) fn around(v4: Ipv4Addr, pool: Subnet<Ipv4Addr>, pool6: Subnet<Ipv6Addr>) -> Self {
        let first = u32::from(v4) & mask(PREFIX);
        let number = first.wrapping_sub(u32::from(pool.address)) >> (32 - PREFIX);
        let number = if number < pool.count().min(pool6.count()) { number } else { 0 };
        Plan { v4: first, ..Plan::new(pool, pool6, number) }
    }

    /// Returns whether an address is one of the network's.
    pub(super) fn has(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => u32::from(v4) & mask(PREFIX) == self.v4,
            IpAddr::V6(v6) => u128::from(v6) & mask6(PREFIX6) == self.v6,
        }
    }

    /// Returns the host's address, which containers send everything to.
    pub(super) fn host(self) -> Pair {
        self.at(1)
    }

    /// Returns the address of a container, counted from 0 to [`CONTAINERS`].
    pub(super) fn container(self, number: u32) -> Pair {
        self.at(2 + number)
    }

    fn at(self, last: u32) -> Pair {
        Pair { v4: Ipv4Addr::from(self.v4 + last), v6: Ipv6Addr::from(self.v6 + u128::from(last)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_a_pool_do_not_overlap() {
        let pool: Subnet<Ipv4Addr> = "10.213.7.9/16".parse().unwrap();
        assert_eq!(pool.to_string(), "10.213.0.0/16");
        assert_eq!(pool.count(), 256);
        let plan = Plan::new(pool, Subnet::default(), 3);
        assert_eq!(plan.host().v4, Ipv4Addr::new(10, 213, 3, 1));
        assert_eq!(plan.container(0).v4, Ipv4Addr::new(10, 213, 3, 2));
        assert_eq!(plan.container(0).v6.to_string(), "fd6f:6369:686b:3::2");
        assert_eq!(plan.container(0).mac(), [0x0a, 0x6f, 10, 213, 3, 2]);
        assert_eq!(plan.container(CONTAINERS - 1).v4, Ipv4Addr::new(10, 213, 3, 254));
    }

    #[test]
    fn what_the_host_has_routes_to_is_left_alone() {
        let pool = Subnet::<Ipv4Addr>::default();
        let route = |text: &str, prefix| (text.parse::<Ipv4Addr>().unwrap(), prefix);
        assert!(pool.clashes(3, &[route("10.213.3.128", 25)]));
        assert!(pool.clashes(3, &[route("10.0.0.0", 8)]));
        assert!(!pool.clashes(3, &[route("10.213.4.0", 24), route("192.168.0.0", 16)]));
    }

    #[test]
    fn blocks_too_small_for_a_network_are_refused() {
        for text in ["10.0.0.0", "10.0.0.0/25", "10.0.0.0/0", "x/8", "fd00::/48"] {
            assert!(text.parse::<Subnet<Ipv4Addr>>().is_err(), "{text}");
        }
        assert!("fd00::/65".parse::<Subnet<Ipv6Addr>>().is_err());
        assert!("fd00:1::/64".parse::<Subnet<Ipv6Addr>>().is_ok());
    }
}
