//! Address blocks: parsing, and the blocks of networks in a pool.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};

/// A block of addresses, [`Ipv4Net`] or [`Ipv6Net`], that is divided into networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet<N>(N);

/// Error of parsing a block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid network {text:?}: expected one such as {example}, with a prefix length of at most {longest}"
)]
pub struct SubnetError {
    text: String,
    example: &'static str,
    longest: u8,
}

/// Prefix of each network: enough for 253 containers and the host.
const PREFIX: u8 = 24;
const PREFIX6: u8 = 64;

/// Number of containers for which a network has addresses.
pub const CONTAINERS: u32 = 253;

impl Default for Subnet<Ipv4Net> {
    fn default() -> Self {
        // Not a default network of Docker, Podman, libvirt or Kubernetes.
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

/// Parses `ADDRESS/PREFIX`, with addresses as the standard library accepts them: `ipnet` accepts
/// `010.0.0.0`, which other programs read as octal.
fn parse<A: FromStr>(text: &str, longest: u8) -> Option<(A, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| (1..=longest).contains(prefix))?;
    Some((address.parse().ok()?, prefix))
}

impl Subnet<Ipv4Net> {
    /// Returns the number of networks in the pool.
    pub(super) fn count(self) -> u32 {
        1 << (PREFIX - self.0.prefix_len())
    }

    fn network(self, number: u32) -> Ipv4Net {
        let first = self.0.addr().to_bits() + (number << (32 - PREFIX));
        Ipv4Net::new_assert(Ipv4Addr::from_bits(first), PREFIX)
    }

    /// Returns whether the network with this number overlaps a route.
    pub(super) fn overlaps_route(self, number: u32, routes: &[Ipv4Net]) -> bool {
        let own = self.network(number);
        routes.iter().any(|route| route.contains(&own) || own.contains(route))
    }
}

impl Subnet<Ipv6Net> {
    /// Returns the number of networks in the pool, at most `u32::MAX`.
    pub(super) fn count(self) -> u32 {
        1_u32.checked_shl(u32::from(PREFIX6 - self.0.prefix_len())).unwrap_or(u32::MAX)
    }

    fn network(self, number: u32) -> Ipv6Net {
        let first = self.0.addr().to_bits() + (u128::from(number) << (128 - PREFIX6));
        Ipv6Net::new_assert(Ipv6Addr::from_bits(first), PREFIX6)
    }

    /// Returns whether the network with this number overlaps a route.
    pub(super) fn overlaps_route(self, number: u32, routes: &[Ipv6Net]) -> bool {
        let own = self.network(number);
        routes.iter().any(|route| route.contains(&own) || own.contains(route))
    }
}

/// An address of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl AddressPair {
    /// Returns a locally administered hardware address, derived from the IPv4 address.
    pub fn mac(self) -> [u8; 6] {
        let [a, b, c, d] = self.v4.octets();
        [0x0a, 0x6f, a, b, c, d]
    }

    /// Returns the IPv4 address from which a hardware address was derived.
    pub fn ipv4_from_mac(mac: [u8; 6]) -> Option<Ipv4Addr> {
        let [0x0a, 0x6f, a, b, c, d] = mac else { return None };
        Some(Ipv4Addr::from([a, b, c, d]))
    }
}

/// Addresses of one network.
#[derive(Clone, Copy, Debug)]
pub struct AddressPlan {
    v4: Ipv4Net,
    v6: Ipv6Net,
}

impl AddressPlan {
    pub(super) const PREFIX: u8 = PREFIX;
    pub(super) const PREFIX6: u8 = PREFIX6;

    /// Returns the addresses of the network with this number.
    pub(super) fn new(pool: Subnet<Ipv4Net>, pool6: Subnet<Ipv6Net>, number: u32) -> Self {
        AddressPlan { v4: pool.network(number), v6: pool6.network(number) }
    }

    /// Returns the addresses of the network that contains an IPv4 address, by the current pools.
    pub(super) fn from_address(
        v4: Ipv4Addr,
        pool: Subnet<Ipv4Net>,
        pool6: Subnet<Ipv6Net>,
    ) -> Self {
        let v4 = Ipv4Net::new_assert(v4, PREFIX).trunc();
        let number = v4.addr().to_bits().wrapping_sub(pool.0.addr().to_bits()) >> (32 - PREFIX);
        let number = if number < pool.count().min(pool6.count()) { number } else { 0 };
        AddressPlan { v4, ..AddressPlan::new(pool, pool6, number) }
    }

    /// Returns whether an address belongs to the network.
    pub(super) fn has(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.contains(&v4),
            IpAddr::V6(v6) => self.v6.contains(&v6),
        }
    }

    /// Returns the host's address, which is the gateway of containers.
    pub(super) fn host(self) -> AddressPair {
        self.address_pair(1)
    }

    /// Returns the address of a container, whose number is less than [`CONTAINERS`].
    pub(super) fn container(self, number: u32) -> AddressPair {
        self.address_pair(2 + number)
    }

    /// Returns the address of the host's end of an uplink program, the same as slirp4netns assigns.
    pub(super) fn uplink(self) -> AddressPair {
        self.address_pair(100)
    }

    /// Returns the address of the uplink program.
    pub(super) fn gateway(self) -> AddressPair {
        self.address_pair(2)
    }

    /// Returns the address of the uplink program's resolver.
    pub(super) fn resolver(self) -> AddressPair {
        self.address_pair(3)
    }

    fn address_pair(self, last: u32) -> AddressPair {
        AddressPair {
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
        let plan = AddressPlan::new(pool, Subnet::default(), 3);
        assert_eq!(plan.host().v4, Ipv4Addr::new(10, 213, 3, 1));
        assert_eq!(plan.container(0).v4, Ipv4Addr::new(10, 213, 3, 2));
        assert_eq!(plan.container(0).v6.to_string(), "fd6f:6369:686b:3::2");
        assert_eq!(plan.container(0).mac(), [0x0a, 0x6f, 10, 213, 3, 2]);
        assert_eq!(plan.container(CONTAINERS - 1).v4, Ipv4Addr::new(10, 213, 3, 254));
    }

    #[test]
    fn subnets_with_host_routes_are_skipped() {
        let pool = Subnet::<Ipv4Net>::default();
        let route = |text: &str| text.parse::<Ipv4Net>().unwrap();
        assert!(pool.overlaps_route(3, &[route("10.213.3.128/25")]));
        assert!(pool.overlaps_route(3, &[route("10.0.0.0/8")]));
        assert!(!pool.overlaps_route(3, &[route("10.213.4.0/24"), route("192.168.0.0/16")]));
    }

    #[test]
    fn blocks_too_small_for_a_network_are_rejected() {
        for text in ["10.0.0.0", "10.0.0.0/25", "010.0.0.0/8", "10.0.0.0/0", "x/8", "fd00::/48"] {
            assert!(text.parse::<Subnet<Ipv4Net>>().is_err(), "{text}");
        }
        let error = "10.0.0.0/25".parse::<Subnet<Ipv4Net>>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid network \"10.0.0.0/25\": expected one such as 10.213.0.0/16, with a prefix length of at most 24"
        );
        assert!("fd00::/65".parse::<Subnet<Ipv6Net>>().is_err());
        assert!("fd00:1::/64".parse::<Subnet<Ipv6Net>>().is_ok());
    }
}
