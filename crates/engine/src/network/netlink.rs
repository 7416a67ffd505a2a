//! Lists and changes links, addresses and routes by netlink, without running `ip`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::{fs, io};

use ipnet::{Ipv4Net, Ipv6Net};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use tracing::trace;

/// A connection to the kernel for the network namespace in which it was opened.
pub struct Netlink {
    socket: Socket,
}

/// A link to create.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewLink<'a> {
    pub name: &'a str,
    /// Index of the interface, so that it need not be looked up; 0 lets the kernel choose one.
    pub index: u32,
    pub mtu: u32,
    /// Hardware address; `None` lets the kernel choose one, which systemd-udevd may change.
    pub mac: Option<[u8; 6]>,
    pub group: u32,
}

/// An existing link.
#[derive(Clone, Debug, Default)]
pub struct FoundLink {
    pub name: String,
    pub mtu: Option<u32>,
    pub mac: Option<[u8; 6]>,
    /// Index of the other end, in that end's namespace.
    pub peer: Option<u32>,
}

impl NewLink<'_> {
    fn message(&self) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = self.index;
        link.attributes.push(LinkAttribute::IfName(self.name.to_owned()));
        link.attributes.push(LinkAttribute::Mtu(self.mtu));
        link.attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        if self.group != 0 {
            link.attributes.push(LinkAttribute::Group(self.group));
        }
        link
    }
}

fn set_up(link: &mut LinkMessage) {
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
}

/// Table of local addresses, from `linux/rtnetlink.h`.
const RT_TABLE_LOCAL: u8 = 255;

/// Metric of a route that the kernel uses only after its own routes.
const LAST: u32 = 1024;

/// Flags for objects that must not exist yet.
const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Netlink { socket })
    }

    /// Creates a bridge and brings it up.
    pub fn add_bridge(&self, bridge: &NewLink<'_>) -> io::Result<()> {
        // Multicast snooping costs more than forwarding to a few containers, and can lose IPv6 neighbours.
        let data = LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)]));
        let mut link = bridge.message();
        set_up(&mut link);
        link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge), data]));
        self.request(RouteNetlinkMessage::NewLink(link), NEW)
    }

    /// Creates a veth pair: a port of a bridge, which is up, and its peer in another namespace,
    /// which is down.
    pub fn add_pair(
        &self,
        port: &NewLink<'_>,
        bridge: u32,
        peer: &NewLink<'_>,
        namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let mut peer = peer.message();
        peer.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let data = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)));
        let mut link = port.message();
        set_up(&mut link);
        link.attributes.push(LinkAttribute::Controller(bridge));
        link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), data]));
        self.request(RouteNetlinkMessage::NewLink(link), NEW)
    }

    /// Brings up a link by its index.
    pub fn set_up(&self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        set_up(&mut link);
        self.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Adds an address to a link, with the route to its network.
    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix;
        message.header.family = family(address);
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        if address.is_ipv6() {
            // The address is unique, and duplicate detection takes a second.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.request(RouteNetlinkMessage::NewAddress(message), NEW)
    }

    /// Adds a default route through a gateway.
    pub fn add_default_route(&self, gateway: IpAddr) -> io::Result<()> {
        let mut route = RouteMessage::default();
        route.header.address_family = family(gateway);
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.protocol = RouteProtocol::Static;
        route.header.scope = RouteScope::Universe;
        route.header.kind = RouteType::Unicast;
        route.attributes.push(RouteAttribute::Gateway(gateway.into()));
        self.request(RouteNetlinkMessage::NewRoute(route), NEW)
    }

    /// Makes the host accept packets to `::1` that arrive by a link: replies of ports published there.
    ///
    /// It is `route_localnet` for IPv6. The kernel requires a route for the link; its own packets to `::1` go
    /// by `lo`, whose route comes first. Packets that others address to `::1` are dropped, by the kernel and by
    /// the packet filter, before routing.
    pub fn take_loopback6(&self, index: u32) -> io::Result<()> {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet6;
        route.header.destination_prefix_length = 128;
        route.header.table = RT_TABLE_LOCAL;
        route.header.protocol = RouteProtocol::Static;
        route.header.kind = RouteType::Local;
        route.attributes.push(RouteAttribute::Destination(Ipv6Addr::LOCALHOST.into()));
        route.attributes.push(RouteAttribute::Oif(index));
        route.attributes.push(RouteAttribute::Priority(LAST));
        self.request(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_APPEND)
    }

    /// Returns the attributes of a link.
    pub fn link(&self, index: u32) -> io::Result<FoundLink> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        let mut found = FoundLink::default();
        let answer = self.ask(RouteNetlinkMessage::GetLink(link), 0)?;
        if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = answer {
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::IfName(name) => found.name = name,
                    LinkAttribute::Mtu(mtu) => found.mtu = Some(mtu),
                    LinkAttribute::Address(mac) => found.mac = mac.try_into().ok(),
                    LinkAttribute::Link(peer) => found.peer = Some(peer),
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn request(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        match self.ask(message, NLM_F_ACK | flags)? {
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
            _ => Err(io::Error::other("unexpected reply from the kernel")),
        }
    }

    fn ask(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
        trace!(?message, "send a netlink message");
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
        match answer.map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            answer => Ok(answer),
        }
    }
}

/// Returns the index of a link in the calling thread's namespace.
pub fn index(name: &str) -> io::Result<u32> {
    // `/sys` shows the namespace in which it was mounted, not the thread's.
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Routes of one family in the calling thread's namespace.
#[derive(Debug)]
pub struct RouteTable<N> {
    pub networks: Vec<N>,
    /// Links of default routes, the preferred one first.
    pub defaults: Vec<String>,
}

impl<N> RouteTable<N> {
    fn add(&mut self, link: &str, prefix: u8, network: N) {
        match prefix {
            // The kernel's own route for unreachable destinations.
            0 if link == "lo" => {}
            0 => self.defaults.push(link.to_owned()),
            // VPNs split the default route into two halves.
            1 => {}
            _ => self.networks.push(network),
        }
    }
}

/// Reads the IPv4 routes of the calling thread's namespace.
pub fn routes() -> io::Result<RouteTable<Ipv4Net>> {
    let table = fs::read_to_string("/proc/thread-self/net/route")?;
    let mut routes = RouteTable { networks: Vec::new(), defaults: Vec::new() };
    for line in table.lines().skip(1) {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [link, destination, _, _, _, _, _, mask, ..] = fields[..] else { continue };
        let number = |text| u32::from_str_radix(text, 16).ok();
        let (Some(destination), Some(mask)) = (number(destination), number(mask)) else { continue };
        // Printed as numbers in native byte order.
        let address = Ipv4Addr::from(destination.to_ne_bytes());
        let prefix = u8::try_from(mask.count_ones()).expect("there are 32 bits");
        routes.add(link, prefix, Ipv4Net::new_assert(address, prefix));
    }
    Ok(routes)
}

/// Reads the IPv6 routes, without routes to single addresses.
pub fn routes6() -> io::Result<RouteTable<Ipv6Net>> {
    let mut routes = RouteTable { networks: Vec::new(), defaults: Vec::new() };
    let table = match fs::read_to_string("/proc/thread-self/net/ipv6_route") {
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(routes),
        table => table?,
    };
    for line in table.lines() {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [destination, prefix, .., link] = fields[..] else { continue };
        let address = u128::from_str_radix(destination, 16);
        let (Ok(address), Ok(prefix)) = (address, u8::from_str_radix(prefix, 16)) else { continue };
        if prefix < 128 {
            routes.add(link, prefix, Ipv6Net::new_assert(Ipv6Addr::from(address), prefix));
        }
    }
    Ok(routes)
}
