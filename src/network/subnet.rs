//! Which addresses a network has.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};

/// A block of addresses, [`Ipv4Net`] or [`Ipv6Net`], that has room for networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet<N>(N);

/// A text that is no block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid network {text:?}: expected one such as {example}, at most /{longest}")]
pub struct SubnetError {
    text: String,
    example: &'static str,
    longest: u8,
}

/// The block of each network: enough for 253 containers and the host.
const PREFIX: u8 = 24;
const PREFIX6: u8 = 64;

/// How many containers a network has addresses for.
pub const CONTAINERS: u32 = 253;

impl Default for Subnet<Ipv4Net> {
    fn default() -> Self {
        // Neither Docker's nor podman's, libvirt's or Kubernetes' usual ones.
        Subnet(Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16))
    }
}

impl Default for Subnet<Ipv6Net> {
    fn default() -> Self {
        Subnet(Ipv6Net::new_assert(Ipv6Addr::new(0xfd6f, 0x6369, 0x686b, 0, 0, 0, 0, 0), 48))
    }
}

impl<N: fmt::Display> fmt::Display for Subnet<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Subnet<Ipv4Net> {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let example = "10.213.0.0/16";
        let error = || SubnetError { text: text.to_owned(), example, longest: PREFIX };
        let (address, prefix) = parse(text, PREFIX).ok_or_else(error)?;
        Ok(Subnet(Ipv4Net::new(address, prefix).map_err(|_| error())?.trunc()))
    }
}

impl FromStr for Subnet<Ipv6Net> {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let example = "fd00:1234:5678::/48";
        let error = || SubnetError { text: text.to_owned(), example, longest: PREFIX6 };
        let (address, prefix) = parse(text, PREFIX6).ok_or_else(error)?;
        Ok(Subnet(Ipv6Net::new(address, prefix).map_err(|_| error())?.trunc()))
    }
}

/// Reads addresses as the standard library does: `ipnet` takes `010.0.0.0`, which others read as octal.
fn parse<A: FromStr>(text: &str, longest: u8) -> Option<(A, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| (1..=longest).contains(prefix))?;
    Some((address.parse().ok()?, prefix))
}

impl Subnet<Ipv4Net> {
    /// Returns how many networks there are in the pool.
    pub(super) fn count(self) -> u32 {
        1 << (PREFIX - self.0.prefix_len())
    }

    fn network(self, number: u32) -> Ipv4Net {
        let first = self.0.addr().to_bits() + (number << (32 - PREFIX));
        Ipv4Net::new_assert(Ipv4Addr::from_bits(first), PREFIX)
    }

    /// Returns whether the network with this number shares an address with one of these.
    pub(super) fn clashes(self, number: u32, routes: &[Ipv4Net]) -> bool {
        let own = self.network(number);
        routes.iter().any(|route| route.contains(&own) || own.contains(route))
    }
}

impl Subnet<Ipv6Net> {
    /// Returns how many networks there are in the pool, if not too many to count.
    pub(super) fn count(self) -> u32 {
        1_u32.checked_shl(u32::from(PREFIX6 - self.0.prefix_len())).unwrap_or(u32::MAX)
    }

    fn network(self, number: u32) -> Ipv6Net {
        let first = self.0.addr().to_bits() + (u128::from(number) << (128 - PREFIX6));
        Ipv6Net::new_assert(Ipv6Addr::from_bits(first), PREFIX6)
    }

    /// Returns whether the network with this number shares an address with one of these.
    pub(super) fn clashes(self, number: u32, routes: &[Ipv6Net]) -> bool {
        let own = self.network(number);
        routes.iter().any(|route| route.contains(&own) || own.contains(route))
    }
}

/// An address in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Pair {
    /// Returns a hardware address for whoever has these: a locally administered one.
    pub fn mac(self) -> [u8; 6] {
        let [a, b, c, d] = self.v4.octets();
        [0x0a, 0x6f, a, b, c, d]
    }

    /// Returns the address of version 4 that a hardware address was made of.
    pub fn v4_of(mac: [u8; 6]) -> Option<Ipv4Addr> {
        let [0x0a, 0x6f, a, b, c, d] = mac else { return None };
        Some(Ipv4Addr::from([a, b, c, d]))
    }
}

/// The addresses of one network.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    v4: Ipv4Net,
    v6: Ipv6Net,
}

impl Plan {
    pub(super) const PREFIX: u8 = PREFIX;
    pub(super) const PREFIX6: u8 = PREFIX6;

    /// Returns the addresses of the network with this number.
    pub(super) fn new(pool: Subnet<Ipv4Net>, pool6: Subnet<Ipv6Net>, number: u32) -> Self {
        Plan { v4: pool.network(number), v6: pool6.network(number) }
    }

    /// Returns those of the network that an address of version 4 is in, by the pools of now.
    pub(super) fn around(v4: Ipv4Addr, pool: Subnet<Ipv4Net>, pool6: Subnet<Ipv6Net>) -> Self {
        let v4 = Ipv4Net::new_assert(v4, PREFIX).trunc();
        let number = v4.addr().to_bits().wrapping_sub(pool.0.addr().to_bits()) >> (32 - PREFIX);
        let number = if number < pool.count().min(pool6.count()) { number } else { 0 };
        Plan { v4, ..Plan::new(pool, pool6, number) }
    }

    /// Returns whether an address is one of the network's.
    pub(super) fn has(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.contains(&v4),
            IpAddr::V6(v6) => self.v6.contains(&v6),
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

    /// Returns the address of the host's end, if a program leads from there to the real host. It is that which
    /// slirp4netns gives.
    pub(super) fn uplink(self) -> Pair {
        self.at(100)
    }

    /// Returns the address of the program that leads from the host to the real one.
    pub(super) fn gateway(self) -> Pair {
        self.at(2)
    }

    /// Returns the address of that program's resolver.
    pub(super) fn resolver(self) -> Pair {
        self.at(3)
    }

    fn at(self, last: u32) -> Pair {
        Pair {
            v4: Ipv4Addr::from_bits(self.v4.addr().to_bits() + last),
            v6: Ipv6Addr::from_bits(self.v6.addr().to_bits() + u128::from(last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_a_pool_do_not_overlap() {
        let pool: Subnet<Ipv4Net> = "10.213.7.9/16".parse().unwrap();
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
        let pool = Subnet::<Ipv4Net>::default();
        let route = |text: &str| text.parse::<Ipv4Net>().unwrap();
        assert!(pool.clashes(3, &[route("10.213.3.128/25")]));
        assert!(pool.clashes(3, &[route("10.0.0.0/8")]));
        assert!(!pool.clashes(3, &[route("10.213.4.0/24"), route("192.168.0.0/16")]));
    }

    #[test]
    fn blocks_too_small_for_a_network_are_refused() {
        for text in ["10.0.0.0", "10.0.0.0/25", "010.0.0.0/8", "10.0.0.0/0", "x/8", "fd00::/48"] {
            assert!(text.parse::<Subnet<Ipv4Net>>().is_err(), "{text}");
        }
        let error = "10.0.0.0/25".parse::<Subnet<Ipv4Net>>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid network \"10.0.0.0/25\": expected one such as 10.213.0.0/16, at most /24"
        );
        assert!("fd00::/65".parse::<Subnet<Ipv6Net>>().is_err());
        assert!("fd00:1::/64".parse::<Subnet<Ipv6Net>>().is_ok());
    }
}
