//! A job's network: a bridge in a namespace of its own, linked to the host and to the containers' namespaces.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::{fs, io};

use oci_hooks_files::fs::{PathContext as _, entries_in};
use oci_hooks_files::rollback::Rollback;
use oci_hooks_host::netns;
use oci_hooks_host::privilege::host_network;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::thread::{ConcurrentWork, spawn_or_call};
use oci_hooks_host::userns::{NamespaceMapping, PrivateIds};

use super::error::NetworkError;
use super::firewall;
use super::interface::InterfaceName;
use super::link;
use super::outside::{OutsideHost, UplinkRecord};
use super::port::{PortMapping, PublishedPort};
use super::record::{
    self, BRIDGE, EndpointRecord, NetworkRecord, RECORD, claim, directory, lock, records,
};
use super::request::{
    EndpointRequest, NamespaceOwner, NetworkEndpoint, NetworkOptions, NetworkRequest,
};
use super::reserve::{TakenPorts, check_rights, in_use_error, is_taken, reserve};
use super::subnet::AddressPair;
use super::uplink::{self, UplinkStart};
use super::uplink_program::UplinkChoice;

/// An existing network.
///
/// Any number of processes and threads may have it open and connect containers at once.
#[derive(Debug)]
pub struct Network {
    options: NetworkOptions,
    record: NetworkRecord,
}

impl Network {
    /// Creates a network. After an error, nothing of it remains.
    pub fn create(
        options: &NetworkOptions,
        request: &NetworkRequest,
    ) -> Result<Self, NetworkError> {
        let id = &request.id;
        check_name(id)?;
        let mut undo = Rollback::new();
        let outside = OutsideHost::examine_host(options)?;
        let lock = lock(options)?;
        let others = records(options)?.known;
        let record = claim(options, request, &others, &outside)?;
        undo.push(|| drop(Network::remove_id(options, id)));
        let network = Network { options: options.clone(), record };
        // nft takes as long to load the table as the kernel to create the bridge.
        thread::scope(|scope| {
            let entered = spawn_or_call(scope, || {
                let _lock = lock;
                let others: Vec<_> = others.iter().map(|other| other.member(options)).collect();
                firewall::enter(&network.record.member(options), &others)
            });
            let made = network.make_bridge(request);
            entered.join().and(made)
        })?;
        undo.disarm();
        Ok(network)
    }

    fn make_bridge(&self, request: &NetworkRequest) -> Result<(), NetworkError> {
        if let Some(owner) = request.user_namespace {
            let (pin, ids) = (self.user_pin(), self.private_ids());
            let namespace = match owner {
                NamespaceOwner::Creator => NamespaceMapping::shifted(ids).namespace(),
                NamespaceOwner::FirstId => ids.namespace(),
            };
            netns::pin(namespace.with_path("make a user namespace for", &pin)?.as_fd(), &pin)?;
        }
        link::make_bridge(&self.record, self.record.plan(&self.options), &self.bridge_pin())
    }

    /// Opens a network that another process created.
    pub fn open(options: &NetworkOptions, id: &str) -> Result<Self, NetworkError> {
        check_name(id)?;
        Ok(Network { options: options.clone(), record: read(options, id)? })
    }

    /// Returns the host's address for containers that may reach the host.
    pub fn host_address(&self) -> IpAddr {
        let address = self.record.uplink.as_ref().and_then(|uplink| uplink.address);
        address.unwrap_or_else(|| self.record.plan(&self.options).host().v4.into())
    }

    /// Returns the resolver for containers that cannot reach the host's resolvers.
    pub fn resolver(&self) -> Option<IpAddr> {
        uplink::resolver(&self.record, &self.options)
    }

    /// Returns a warning about the uplink, if any.
    pub fn warning(&self) -> Option<String> {
        let uplink = self.record.uplink.as_ref().filter(|uplink| uplink.loses_half_closed)?;
        Some(format!(
            "{} is too old: connections hang, or lose the end of the answer, after the client half-closes; install \
             slirp4netns, or passt of 2026-10 or newer",
            uplink.program.display()
        ))
    }

    /// Returns the name of the uplink program if it has ended or was killed. Connecting another container
    /// starts it again.
    pub fn find_lost_uplink(&self) -> Result<Option<&'static str>, NetworkError> {
        let Some(uplink) = &self.record.uplink else { return Ok(None) };
        let has_ended = uplink::has_ended(&self.options, &uplink.network)?;
        Ok(has_ended.then(|| uplink.kind.name()))
    }

    /// Checks that this user can publish ports on the host, before anything is created for them.
    pub fn check_ports(
        options: &NetworkOptions,
        ports: &[PortMapping],
    ) -> Result<(), NetworkError> {
        match ports.first() {
            Some(port) if options.privilege.has_own_network() => {
                if options.uplink == UplinkChoice::None {
                    return Err(no_way_in_error(port));
                }
                host_network::run(|| check_rights(ports))
            }
            _ => Ok(()),
        }
    }

    /// Returns the host's end of the network's link.
    pub(super) fn link(&self) -> &InterfaceName {
        &self.record.link
    }

    /// Returns host ids that are reserved as long as the network exists.
    pub fn private_ids(&self) -> PrivateIds {
        // No network gets a larger number.
        PrivateIds::of_job(self.record.number).unwrap_or_default()
    }

    /// Returns the pinned user namespace of the containers, which maps ids from 0 on to the private ids;
    /// `None` if they are in the host's.
    pub fn user_namespace(&self) -> Option<PathBuf> {
        self.record.user_namespace.then(|| self.user_pin())
    }

    /// Connects a container: creates its namespace, with addresses and routes, and publishes ports. After an
    /// error, nothing of it remains.
    pub fn attach(&self, request: &EndpointRequest) -> Result<NetworkEndpoint, NetworkError> {
        let attached = self.attach_all(std::slice::from_ref(request));
        attached.map_err(|(_, error)| error).map(|mut endpoints| endpoints.remove(0))
    }

    /// Connects containers as [`attach`](Self::attach) does: addresses and ports are assigned in order, the
    /// rest is done in parallel. An error comes with the index of its request; after it, nothing of any
    /// container remains.
    pub fn attach_all(
        &self,
        requests: &[EndpointRequest],
    ) -> Result<Vec<NetworkEndpoint>, (usize, NetworkError)> {
        // A port that was chosen, not requested, may be taken by another program before the uplink listens on it.
        for _ in 1..TRIES_OF_PORTS {
            match self.try_to_attach_all(requests) {
                Err((at, NetworkError::PortInUse { port, .. }))
                    if !requests_port(&requests[at], port) => {}
                result => return result,
            }
        }
        self.try_to_attach_all(requests)
    }

    fn try_to_attach_all(
        &self,
        requests: &[EndpointRequest],
    ) -> Result<Vec<NetworkEndpoint>, (usize, NetworkError)> {
        let mut undo = Rollback::new();
        let mut claimed = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            let endpoint = check_name(&request.name).and_then(|()| self.claim(request));
            claimed.push(endpoint.map_err(|error| (at, error))?);
            undo.push(|| drop(self.detach(&request.name)));
        }
        let (connected, led_out) = match &claimed[..] {
            [] => return Ok(Vec::new()),
            [only] if self.record.uplink.is_none() => (vec![self.connect(only)], Ok(())),
            all => thread::scope(|scope| {
                let threads = all.iter().map(|one| spawn_or_call(scope, || self.connect(one)));
                let threads: Vec<_> = threads.collect();
                let led_out = self.start_uplink(&claimed);
                (threads.into_iter().map(ConcurrentWork::join).collect::<Vec<_>>(), led_out)
            }),
        };
        led_out?;
        let connected = connected.into_iter().enumerate();
        let endpoints = connected.map(|(at, endpoint)| endpoint.map_err(|error| (at, error)));
        let endpoints = endpoints.collect::<Result<_, _>>()?;
        undo.disarm();
        Ok(endpoints)
    }

    /// Starts the uplink program if the network needs one, or restarts it for the ports of newly
    /// recorded containers (`claimed`). An error comes with the index of the container whose port
    /// caused it, or 0.
    fn start_uplink(&self, claimed: &[EndpointRecord]) -> Result<(), (usize, NetworkError)> {
        let Some(UplinkRecord { network, .. }) = &self.record.uplink else { return Ok(()) };
        let at_first = |error| (0, error);
        let _lock = lock(&self.options).map_err(at_first)?;
        let record = read(&self.options, &self.record.id).map_err(at_first)?;
        let has_ports = claimed.iter().any(|endpoint| !endpoint.outside.is_empty());
        let is_first = uplink::is_missing(&self.options, network).map_err(at_first)?;
        let when = if has_ports && !is_first { UplinkStart::Changed } else { UplinkStart::Missing };
        uplink::start_uplink(&self.options, &record, when).map_err(|error| {
            let taken = claimed.iter().enumerate().find_map(|(at, endpoint)| {
                let taken =
                    endpoint.outside.iter().find(|port| host_network::run(|| is_taken(port)))?;
                Some((at, in_use_error(taken)))
            });
            taken.unwrap_or((0, error))
        })
    }

    /// Creates the connection of a recorded container.
    fn connect(&self, endpoint: &EndpointRecord) -> Result<NetworkEndpoint, NetworkError> {
        let plan = self.record.plan(&self.options);
        let netns = self.pin(&endpoint.name);
        let owner = self.user_namespace().map(|pin| netns::open(&pin)).transpose()?;
        let owner = owner.as_ref().map(OwnedFd::as_fd);
        link::connect(&self.record, plan, endpoint.number, [&self.bridge_pin(), &netns], owner)?;
        let AddressPair { v4, v6 } = plan.container(endpoint.number);
        firewall::publish((&endpoint.published, AddressPair { v4, v6 }))?;
        let ipv6 = self.record.ipv6.then_some(IpAddr::from(v6));
        let addresses = [IpAddr::from(v4)].into_iter().chain(ipv6).collect();
        Ok(NetworkEndpoint {
            netns,
            addresses,
            published: endpoint.usable_ports().to_vec(),
            resolver: uplink::resolver(&self.record, &self.options),
        })
    }

    /// Records a container, with an address and host ports that no other container has.
    fn claim(&self, request: &EndpointRequest) -> Result<EndpointRecord, NetworkError> {
        let (name, id) = (&request.name, &self.record.id);
        let _lock = lock(&self.options)?;
        let mut record = read(&self.options, id)?;
        if record.endpoints.iter().any(|endpoint| endpoint.name == *name) {
            return Err(NetworkError::Attached { name: name.clone(), id: id.clone() });
        }
        let number = record.free_number().ok_or_else(|| NetworkError::Full { id: id.clone() })?;
        let uplink = record.uplink.as_ref();
        let published = match request.ports.as_slice() {
            [] => Vec::new(),
            [port, ..] if self.options.privilege.has_own_network() && uplink.is_none() => {
                return Err(no_way_in_error(port));
            }
            ports => reserve(&TakenPorts::from_records(records(&self.options)?)?, uplink, ports)?,
        };
        let (published, outside) = match uplink {
            None => (published, Vec::new()),
            // Packets arrive at another address than the one they were sent to.
            Some(_) => (published.iter().map(PublishedPort::to_any_address).collect(), published),
        };
        let endpoint = EndpointRecord { name: name.clone(), number, published, outside };
        record.endpoints.push(endpoint.clone());
        record.next = number + 1;
        record::write(&self.options, &record)?;
        Ok(endpoint)
    }

    /// Disconnects a container; does nothing if it is not connected.
    pub fn detach(&self, name: &str) -> Result<(), NetworkError> {
        let _lock = lock(&self.options)?;
        let mut record = match read(&self.options, &self.record.id) {
            Err(NetworkError::Unknown { .. }) => return Ok(()),
            record => record?,
        };
        let Some(at) = record.endpoints.iter().position(|endpoint| endpoint.name == name) else {
            return Ok(());
        };
        let endpoint = record.endpoints.swap_remove(at);
        let container = record.plan(&self.options).container(endpoint.number);
        firewall::withdraw((&endpoint.published, container))?;
        netns::unpin(&self.pin(name))?;
        record::write(&self.options, &record)?;
        match endpoint.outside.is_empty() {
            true => Ok(()),
            false => uplink::start_uplink(&self.options, &record, UplinkStart::Changed),
        }
    }

    /// Removes the network, as [`Network::remove_id`] does.
    pub fn remove(self) -> Result<(), NetworkError> {
        Network::remove_id(&self.options, &self.record.id)
    }

    /// Removes a network, or its remains; does nothing if there are none.
    ///
    /// Without its pin, the kernel destroys the bridge namespace with all links, asynchronously within
    /// milliseconds. A container that still runs keeps its namespace, without a connection.
    pub fn remove_id(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
        check_name(id)?;
        let directory = directory(options, id);
        let lock = lock(options)?;
        match fs::symlink_metadata(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Not created by the engine.
            Ok(found) if !found.is_dir() => return Ok(remove_tree(&directory)?),
            found => found.with_path("look up", &directory)?,
        };
        uplink::end_soon(options, id)?;
        let left = match read(options, id) {
            Ok(record) => Some(firewall::remove_member(&record.member(options))?),
            // A process killed before it wrote the record had not created the bridge either.
            Err(error)
                if error.is_unreadable() || matches!(error, NetworkError::Unknown { .. }) =>
            {
                link::leave_unrecorded(options, &directory.join(BRIDGE))?
            }
            Err(error) => return Err(error),
        };
        remove_pins(&directory)?;
        // Other networks need not wait for the kernel's remaining work.
        drop(lock);
        drop(left);
        Ok(())
    }

    /// Returns the ids of all networks, also of those with an unreadable or missing record.
    pub fn ids(options: &NetworkOptions) -> Result<Vec<String>, NetworkError> {
        let records = records(options)?;
        let unreadable = records.unreadable.into_iter().map(|(id, _)| id);
        Ok(records.known.into_iter().map(|record| record.id).chain(unreadable).collect())
    }

    /// Returns the ids of networks with unreadable or missing records, with the reasons.
    pub fn unreadable_networks(
        options: &NetworkOptions,
    ) -> Result<Vec<(String, NetworkError)>, NetworkError> {
        Ok(records(options)?.unreadable)
    }

    fn user_pin(&self) -> PathBuf {
        directory(&self.options, &self.record.id).join("job.userns")
    }

    fn bridge_pin(&self) -> PathBuf {
        directory(&self.options, &self.record.id).join(BRIDGE)
    }

    fn pin(&self, name: &str) -> PathBuf {
        directory(&self.options, &self.record.id).join(format!("{name}.container.netns"))
    }
}

/// Number of attempts at choosing ports, which other programs may take first.
const TRIES_OF_PORTS: usize = 5;

/// Returns whether a container requested this port of the host.
fn requests_port(request: &EndpointRequest, port: u16) -> bool {
    let mut asked = request.ports.iter().filter_map(|mapping| mapping.host_ports.as_ref());
    asked.any(|ports| ports.contains(&port))
}

/// Removes the directory of a network with its pins, even if another process pins namespaces meanwhile.
fn remove_pins(directory: &Path) -> Result<(), NetworkError> {
    const TRIES: usize = 10;
    for attempt in 1.. {
        for path in entries_in(directory)?.iter().map(fs::DirEntry::path) {
            if path.extension().is_some_and(|end| end == "netns" || end == "userns") {
                netns::unpin(&path)?;
            }
        }
        match remove_tree(directory) {
            Err(error) if attempt == TRIES => return Err(error.into()),
            Err(_) => {}
            Ok(()) => break,
        }
    }
    Ok(())
}

fn no_way_in_error(port: &PortMapping) -> NetworkError {
    let PortMapping { host_ports, container_port, protocol, .. } = port;
    let port = host_ports.as_ref().map_or(*container_port, |ports| *ports.start());
    NetworkError::NoUplink { port, protocol: *protocol }
}

fn read(options: &NetworkOptions, id: &str) -> Result<NetworkRecord, NetworkError> {
    let record = record::read(&directory(options, id).join(RECORD))?;
    record.ok_or_else(|| NetworkError::Unknown { id: id.to_owned() })
}

/// Checks the name of a network or container, which becomes part of a file name.
fn check_name(name: &str) -> Result<(), NetworkError> {
    let fits = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 128
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if fits { Ok(()) } else { Err(NetworkError::Name { name: name.to_owned() }) }
}
