//! A job's network: a bridge in a namespace of its own, which containers' namespaces and the host are
//! linked to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::firewall::Firewall;
use super::netlink::{self, Netlink};
use super::port::{PortMapping, Protocol};
use super::subnet::{Pair, Plan, Subnet};
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, read_bounded,
};
use crate::sys::lock::FileLock;
use crate::sys::netns;
use crate::sys::rollback::Rollback;

/// How networks are made on this host.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// What does not outlive a boot, as `/run/oci-hooks`.
    pub run: PathBuf,
    /// Where networks get IPv4 addresses from.
    pub pool: Subnet<Ipv4Addr>,
    /// Where networks get IPv6 addresses from.
    pub pool6: Subnet<Ipv6Addr>,
    /// Whether containers reach services of the host by its addresses; never by its loopback.
    pub host_access: bool,
}

/// A network to make.
#[derive(Clone, Debug)]
pub struct NetworkRequest {
    /// Its id: letters, digits and `-`. The first ten characters are in the name of its link.
    pub id: String,
}

/// A container to connect.
#[derive(Clone, Debug)]
pub struct EndpointRequest {
    /// A name that no other container of the network has: letters, digits and `-`.
    pub name: String,
    /// Ports to publish on the host.
    pub ports: Vec<PortMapping>,
}

/// A connected container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its network namespace, pinned.
    pub netns: PathBuf,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// What is published.
    pub published: Vec<Published>,
}

/// A published port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The container's port.
    pub container_port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The host's address; all of them if none.
    pub host_ip: Option<IpAddr>,
    /// The host's port.
    pub host_port: u16,
}

/// A network that is there.
#[derive(Debug)]
pub struct Network {
    options: NetworkOptions,
    record: Record,
}

/// What is known of a network, from before anything of it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    id: String,
    number: u32,
    pool: String,
    pool6: String,
    host_access: bool,
    endpoints: Vec<EndpointRecord>,
    /// How many containers it has had: addresses are not given again.
    next: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct EndpointRecord {
    name: String,
    number: u32,
    published: Vec<Published>,
}

const BRIDGE: &str = "bridge";
const UPLINK: &str = "uplink";
const HUB: &str = "hub";

impl Network {
    /// Makes a network. On an error nothing is left of it.
    pub fn create(
        options: &NetworkOptions,
        request: &NetworkRequest,
    ) -> Result<Self, NetworkError> {
        let record = claim(options, &request.id)?;
        let network = Network { options: options.clone(), record };
        let undo = {
            let mut undo = Rollback::new();
            undo.push(|| drop(Network::remove_id(options, &request.id)));
            undo
        };
        std::thread::scope(|scope| {
            // A program has to be started for it; the rest goes on meanwhile.
            let firewall = scope.spawn(|| network.firewall().install());
            let linked = network.link();
            let installed = firewall.join().expect("installing the firewall does not panic");
            linked.and(installed)
        })?;
        undo.disarm();
        Ok(network)
    }

    /// Opens a network that another process made.
    pub fn open(options: &NetworkOptions, id: &str) -> Result<Self, NetworkError> {
        let record = read(&directory(options, id).join("record.json"))?;
        let record = record.ok_or_else(|| NetworkError::Unknown { id: id.to_owned() })?;
        Ok(Network { options: options.clone(), record })
    }

    /// Returns the host's address in the network.
    pub fn host_address(&self) -> Option<IpAddr> {
        Some(self.plan().host().v4.into())
    }

    /// Connects a container: makes its namespace, with addresses and routes, and publishes ports.
    pub fn attach(&mut self, request: &EndpointRequest) -> Result<Endpoint, NetworkError> {
        let lock = lock(&self.options)?;
        let number = self.record.next;
        let full = || NetworkError::Full { id: self.record.id.clone() };
        let addresses = self.plan().container(number).ok_or_else(full)?;
        let published = reserve(&self.options, &self.record, &request.ports)?;
        self.record.next += 1;
        self.record.endpoints.push(EndpointRecord {
            name: request.name.clone(),
            number,
            published: published.clone(),
        });
        self.write()?;
        drop(lock);

        let netns = self.pin(&request.name);
        let connected = self
            .connect(&netns, number, addresses)
            .and_then(|()| self.firewall().publish(&published, (addresses.v4, addresses.v6)));
        if let Err(error) = connected {
            // The first error is what counts; the record still says what there may be.
            let _ = self.detach(&request.name);
            return Err(error);
        }
        Ok(Endpoint { netns, addresses: self.families(addresses), published })
    }

    /// Takes a container's connection away.
    pub fn detach(&mut self, name: &str) -> Result<(), NetworkError> {
        let Some(at) = self.record.endpoints.iter().position(|endpoint| endpoint.name == name)
        else {
            return Ok(());
        };
        let endpoint = self.record.endpoints[at].clone();
        self.withdraw(&endpoint)?;
        netns::unpin(&self.pin(name))?;
        let _lock = lock(&self.options)?;
        self.record.endpoints.remove(at);
        self.write()
    }

    /// Removes a network, whatever is left of it; none is fine.
    ///
    /// With the pins gone the kernel takes the namespaces apart as soon as the last process has
    /// left them, and the links with them.
    pub fn remove_id(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
        let directory = directory(options, id);
        if let Some(record) = read(&directory.join("record.json"))? {
            let network = Network { options: options.clone(), record };
            for endpoint in &network.record.endpoints {
                network.withdraw(endpoint)?;
            }
        }
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.at("list", &directory)?,
        };
        for entry in entries.flatten() {
            if entry.path().extension().is_some_and(|end| end == "netns") {
                netns::unpin(&entry.path())?;
            }
        }
        // That the address is free again must not be seen before the link is gone.
        if let (Ok(index), Ok(netlink)) = (netlink::index(&link_name(id)), Netlink::open()) {
            let _ = netlink.remove(index);
        }
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => Ok(result.at("remove", &directory)?),
        }
    }

    fn withdraw(&self, endpoint: &EndpointRecord) -> Result<(), NetworkError> {
        let Some(addresses) = self.plan().container(endpoint.number) else { return Ok(()) };
        self.firewall().withdraw(&endpoint.published, (addresses.v4, addresses.v6))
    }

    /// Makes the hub with its bridge, and the link between it and the host.
    fn link(&self) -> Result<(), NetworkError> {
        let plan = self.plan();
        let id = &self.record.id;
        let name = link_name(id);
        let host = netns::current()?;
        let hub = self.pin(HUB);
        let in_hub = || -> io::Result<()> {
            let netlink = Netlink::open()?;
            netlink.set_up(netlink::index("lo")?, None)?;
            netlink.add_bridge(BRIDGE)?;
            let bridge = netlink::index(BRIDGE)?;
            netlink.add_pair(UPLINK, &name, host.as_fd())?;
            let uplink = netlink::index(UPLINK)?;
            let Pair { v4, v6 } = plan.gateway();
            netlink.add_address(bridge, v4.into(), Plan::CONTAINERS_PREFIX)?;
            netlink.add_address(uplink, plan.uplink().v4.into(), Plan::LINK_PREFIX)?;
            set("net/ipv4/ip_forward", "1")?;
            if has_ipv6() {
                set("net/ipv6/conf/all/forwarding", "1")?;
                netlink.add_address(bridge, v6.into(), Plan::CONTAINERS_PREFIX6)?;
                netlink.add_address(uplink, plan.uplink().v6.into(), Plan::LINK_PREFIX6)?;
            }
            netlink.set_up(bridge, None)?;
            netlink.set_up(uplink, None)
        };
        netns::create(&hub, in_hub)?.map_err(self.because("make the bridge"))?;

        let on_host = || -> io::Result<()> {
            let netlink = Netlink::open()?;
            let index = netlink::index(&name)?;
            netlink.add_address(index, plan.host().v4.into(), Plan::LINK_PREFIX)?;
            // So that ports published on 127.0.0.1 can be passed on.
            set(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
            let has_ipv6 = has_ipv6();
            if has_ipv6 {
                netlink.add_address(index, plan.host().v6.into(), Plan::LINK_PREFIX6)?;
            }
            netlink.set_up(index, None)?;
            let gateway = plan.uplink();
            let base = plan.base();
            let v4 = Some((base.v4.into(), Plan::CONTAINERS_PREFIX));
            netlink.add_route(v4, gateway.v4.into())?;
            if has_ipv6 {
                let v6 = Some((base.v6.into(), Plan::CONTAINERS_PREFIX6));
                netlink.add_route(v6, gateway.v6.into())?;
            }
            // Only IPv4: for IPv6 this would make the host a router, which then stops configuring
            // itself from the routers of its own network.
            set("net/ipv4/ip_forward", "1")
        };
        on_host().map_err(self.because("link the host"))?;

        netns::within(&hub, || -> io::Result<()> {
            let netlink = Netlink::open()?;
            netlink.add_route(None, plan.host().v4.into())?;
            if has_ipv6() {
                netlink.add_route(None, plan.host().v6.into())?;
            }
            Ok(())
        })?
        .map_err(self.because("make the default route"))
    }

    /// Makes the namespace of a container and links it to the bridge.
    fn connect(&self, pin: &Path, number: u32, addresses: Pair) -> Result<(), NetworkError> {
        let hub_pin = self.pin(HUB);
        let hub = netns::open(&hub_pin)?;
        let port = format!("port{number}");
        let gateway = self.plan().gateway();
        let inside = netns::create(pin, || -> io::Result<(Netlink, u32)> {
            let netlink = Netlink::open()?;
            netlink.set_up(netlink::index("lo")?, None)?;
            netlink.add_pair("eth0", &port, hub.as_fd())?;
            let eth0 = netlink::index("eth0")?;
            netlink.add_address(eth0, addresses.v4.into(), Plan::CONTAINERS_PREFIX)?;
            if has_ipv6() {
                netlink.add_address(eth0, addresses.v6.into(), Plan::CONTAINERS_PREFIX6)?;
            }
            netlink.set_up(eth0, None)?;
            netlink.add_route(None, gateway.v4.into())?;
            if has_ipv6() {
                netlink.add_route(None, gateway.v6.into())?;
            }
            Ok((netlink, eth0))
        })?;
        inside.map_err(self.because("connect a container"))?;
        netns::within(&hub_pin, || -> io::Result<()> {
            let netlink = Netlink::open()?;
            netlink.set_up(netlink::index(&port)?, Some(netlink::index(BRIDGE)?))
        })?
        .map_err(self.because("connect a container to the bridge"))
    }

    fn because(&self, action: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
        let id = self.record.id.clone();
        move |source| NetworkError::Link { action, id, source }
    }

    fn families(&self, addresses: Pair) -> Vec<IpAddr> {
        let count = if has_ipv6() { 2 } else { 1 };
        addresses.each().into_iter().take(count).collect()
    }

    fn plan(&self) -> Plan {
        let (pool, pool6) = self.pools();
        Plan::new(pool, pool6, self.record.number)
    }

    fn firewall(&self) -> Firewall {
        let (pool, pool6) = self.pools();
        Firewall::new(pool, pool6, self.record.host_access)
    }

    /// Returns the pools that the network was made from: the configuration may have changed since.
    fn pools(&self) -> (Subnet<Ipv4Addr>, Subnet<Ipv6Addr>) {
        let pool = self.record.pool.parse().unwrap_or(self.options.pool);
        (pool, self.record.pool6.parse().unwrap_or(self.options.pool6))
    }

    fn pin(&self, name: &str) -> PathBuf {
        directory(&self.options, &self.record.id).join(format!("{name}.netns"))
    }

    fn write(&self) -> Result<(), NetworkError> {
        write(&self.options, &self.record)
    }
}

fn directory(options: &NetworkOptions, id: &str) -> PathBuf {
    options.run.join("network").join(id)
}

/// Returns the name of the host's end of a network's link: at most 15 bytes.
fn link_name(id: &str) -> String {
    format!("ocih{}", &id[..id.len().min(10)])
}

fn lock(options: &NetworkOptions) -> Result<FileLock, NetworkError> {
    let dir = options.run.join("network");
    make_private(&dir)?;
    Ok(FileLock::exclusive(&options.run.join("network.lock"))?)
}

/// Writes the record of a network with addresses that nobody else has.
fn claim(options: &NetworkOptions, id: &str) -> Result<Record, NetworkError> {
    let _lock = lock(options)?;
    let used: BTreeSet<_> = records(options)?.into_iter().map(|record| record.number).collect();
    let routes = netlink::routes().at("read", Path::new("/proc/net/route"))?;
    let routes6 = netlink::routes6().at("read", Path::new("/proc/net/ipv6_route"))?;
    let count = options.pool.count();
    // From the one after the last: the kernel may still be taking that one apart.
    let first = used.last().map_or(0, |last| (last + 1) % count);
    let number = (0..count).map(|at| (first + at) % count).find(|number| {
        !used.contains(number)
            && !options.pool.clashes(*number, &routes)
            && !options.pool6.clashes(*number, &routes6)
    });
    let number =
        number.ok_or_else(|| NetworkError::PoolEmpty { pool: options.pool.to_string(), count })?;
    let record = Record {
        id: id.to_owned(),
        number,
        pool: options.pool.to_string(),
        pool6: options.pool6.to_string(),
        host_access: options.host_access,
        endpoints: Vec::new(),
        next: 0,
    };
    make_private(&directory(options, id))?;
    write(options, &record)?;
    Ok(record)
}

/// Chooses ports of the host that nobody has. The lock is held.
fn reserve(
    options: &NetworkOptions,
    own: &Record,
    mappings: &[PortMapping],
) -> Result<Vec<Published>, NetworkError> {
    if mappings.is_empty() {
        return Ok(Vec::new());
    }
    let others = records(options)?.into_iter().filter(|record| record.id != own.id);
    let all = others.flat_map(|record| record.endpoints).chain(own.endpoints.iter().cloned());
    let mut taken: Vec<Published> = all.flat_map(|endpoint| endpoint.published).collect();
    let mut chosen = Vec::new();
    for mapping in mappings {
        let is_free = |port: u16| {
            let clashes = |other: &Published| {
                other.host_port == port
                    && other.protocol == mapping.protocol
                    && (other.host_ip == mapping.host_ip
                        || other.host_ip.is_none()
                        || mapping.host_ip.is_none())
            };
            !taken.iter().any(clashes)
                && can_bind(mapping.host_ip, port, mapping.protocol).is_some()
        };
        let port = match mapping.host_ports.clone() {
            Some(ports) => {
                let first = *ports.start();
                ports.into_iter().find(|port| is_free(*port)).ok_or(NetworkError::PortInUse {
                    host_ip: mapping.host_ip,
                    port: first,
                    protocol: mapping.protocol,
                })?
            }
            None => (0..100)
                .filter_map(|_| can_bind(mapping.host_ip, 0, mapping.protocol))
                .find(|port| is_free(*port))
                .ok_or(NetworkError::PortInUse {
                    host_ip: mapping.host_ip,
                    port: 0,
                    protocol: mapping.protocol,
                })?,
        };
        let published = Published {
            container_port: mapping.container_port,
            protocol: mapping.protocol,
            host_ip: mapping.host_ip,
            host_port: port,
        };
        taken.push(published.clone());
        chosen.push(published);
    }
    Ok(chosen)
}

/// Returns the port if nobody listens on it; for 0, one that is free.
fn can_bind(ip: Option<IpAddr>, port: u16, protocol: Protocol) -> Option<u16> {
    let address = (ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port);
    let bound = match protocol {
        Protocol::Tcp => TcpListener::bind(address).and_then(|socket| socket.local_addr()),
        Protocol::Udp => UdpSocket::bind(address).and_then(|socket| socket.local_addr()),
    };
    bound.ok().map(|address| address.port())
}

fn records(options: &NetworkOptions) -> Result<Vec<Record>, NetworkError> {
    let dir = options.run.join("network");
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", &dir)?,
    };
    let paths = entries.flatten().map(|entry| entry.path().join("record.json"));
    paths.filter_map(|path| read(&path).transpose()).collect()
}

fn read(path: &Path) -> Result<Option<Record>, NetworkError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_bounded(path, 1 << 20)?;
    let invalid = |source| NetworkError::Record { path: path.to_owned(), source };
    serde_json::from_slice(&text).map(Some).map_err(invalid)
}

fn write(options: &NetworkOptions, record: &Record) -> Result<(), NetworkError> {
    let text = serde_json::to_vec(record).expect("records are values that JSON has");
    let replace = ReplaceOptions {
        mode: Some(0o600),
        // The run directory does not outlive a boot.
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    let path = directory(options, &record.id).join("record.json");
    Ok(FileAt::open(&path, Symlinks::Refuse)?.replace(&text, &replace)?)
}

fn make_private(path: &Path) -> Result<(), NetworkError> {
    use std::os::unix::fs::DirBuilderExt as _;

    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    Ok(made.at("make the directory", path)?)
}

/// Sets a parameter of the calling thread's namespace, unless it has that value.
fn set(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{name}");
    if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(path, value) }
}

/// Says whether the calling thread's namespace has IPv6.
fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        .is_ok_and(|value| value.trim() == "0")
}
