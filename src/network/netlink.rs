//! Links, addresses and routes, by the kernel's own protocol: no program is run for it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

/// A connection to the kernel for the network namespace it was opened in.
pub(super) struct Netlink {
    socket: Socket,
}

/// Something that may exist already.
const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Netlink { socket })
    }

    /// Makes a bridge.
    pub(super) fn add_bridge(&self, name: &str) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
        self.request(RouteNetlinkMessage::NewLink(link), NEW)
    }

    /// Makes a pair of links, of which the other one is in another namespace.
    pub(super) fn add_pair(&self, name: &str, peer: &str, other: BorrowedFd<'_>) -> io::Result<()> {
        let mut peer_link = LinkMessage::default();
        peer_link.attributes.push(LinkAttribute::IfName(peer.to_owned()));
        peer_link.attributes.push(LinkAttribute::NetNsFd(other.as_raw_fd()));
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer_link))),
        ]));
        self.request(RouteNetlinkMessage::NewLink(link), NEW)
    }

    /// Brings a link up, as a port of a bridge or by itself.
    pub(super) fn set_up(&self, index: u32, bridge: Option<u32>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        link.attributes.extend(bridge.map(LinkAttribute::Controller));
        self.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Removes a link; the other one of a pair goes too.
    pub(super) fn remove(&self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.request(RouteNetlinkMessage::DelLink(link), 0)
    }

    /// Gives a link an address with the network it is in.
    pub(super) fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix;
        message.header.family = family(address);
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        if address.is_ipv6() {
            // Nobody else can have it, and looking for somebody takes a second.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.request(RouteNetlinkMessage::NewAddress(message), NEW)
    }

    /// Adds a route by way of a neighbour; without a destination it is the default one.
    pub(super) fn add_route(
        &self,
        destination: Option<(IpAddr, u8)>,
        gateway: IpAddr,
    ) -> io::Result<()> {
        let mut route = RouteMessage::default();
        route.header.address_family = family(gateway);
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.protocol = RouteProtocol::Static;
        route.header.scope = RouteScope::Universe;
        route.header.kind = RouteType::Unicast;
        if let Some((address, prefix)) = destination {
            route.header.destination_prefix_length = prefix;
            route.attributes.push(RouteAttribute::Destination(route_address(address)));
        }
        route.attributes.push(RouteAttribute::Gateway(route_address(gateway)));
        self.request(RouteNetlinkMessage::NewRoute(route), NEW)
    }

    /// Sends a request and waits for the kernel to say that it is done.
    fn request(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
        match answer.map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(()),
                Some(_) => Err(error.to_io()),
            },
            _ => Err(io::Error::other("the kernel answered something else")),
        }
    }
}

/// Returns the number of a link of the calling thread's namespace.
pub(super) fn index(name: &str) -> io::Result<u32> {
    // `/sys` shows the namespace it was mounted in, not that of the thread.
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

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

/// Returns the IPv4 networks that the calling thread's namespace has routes to.
pub(super) fn routes() -> io::Result<Vec<(Ipv4Addr, u8)>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/route")?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let (destination, mask) = (number(fields.get(1)?)?, number(fields.get(7)?)?);
        // Written as they are in memory.
        let address = Ipv4Addr::from(destination.to_ne_bytes());
        Some((address, u8::try_from(mask.count_ones()).ok()?))
    });
    Ok(routes.filter(|(_, prefix)| *prefix > 0).collect())
}

/// Returns the IPv6 networks that the calling thread's namespace has routes to.
pub(super) fn routes6() -> io::Result<Vec<(Ipv6Addr, u8)>> {
    let table = match std::fs::read_to_string("/proc/thread-self/net/ipv6_route") {
        // No IPv6 at all.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        table => table?,
    };
    let routes = table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let prefix = u8::from_str_radix(fields.next()?, 16).ok()?;
        Some((Ipv6Addr::from(address), prefix))
    });
    Ok(routes.filter(|(_, prefix)| (1..128).contains(prefix)).collect())
}
