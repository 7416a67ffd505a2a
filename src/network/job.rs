//! A job's network: a bridge in a namespace of its own, which containers' namespaces and the host are
//! linked to.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::firewall::Firewall;
use super::netlink::{self, Netlink};
use super::port::{PortMapping, Protocol};
use super::record::{self, EndpointRecord, Record, claim, directory, lock};
use super::reserve::reserve;
use super::subnet::{Pair, Plan, Subnet};
use crate::sys::fs::PathContext as _;
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
        let record = record::read(&directory(options, id).join("record.json"))?;
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
        if let Some(record) = record::read(&directory.join("record.json"))? {
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
        record::write(&self.options, &self.record)
    }
}

/// Returns the name of the host's end of a network's link: at most 15 bytes.
fn link_name(id: &str) -> String {
    format!("ocih{}", &id[..id.len().min(10)])
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
