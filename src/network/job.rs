//! A job's network: a bridge in a namespace of its own, which containers' namespaces and the host are
//! linked to.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use super::error::NetworkError;
use super::firewall;
use super::interface::Interface;
use super::link;
use super::outside::Outside;
use super::port::{PortMapping, Published};
use super::record::{self, EndpointRecord, RECORD, Record, claim, directory, lock, records};
use super::request::{Endpoint, EndpointRequest, NamespaceOwner, NetworkOptions, NetworkRequest};
use super::reserve::{Taken, check_rights, in_use, is_taken, reserve};
use super::subnet::Pair;
use super::uplink::{self, When};
use crate::sys::fs::PathContext as _;
use crate::sys::netns;
use crate::sys::privilege::outside;
use crate::sys::removal::remove_tree;
use crate::sys::rollback::Rollback;
use crate::sys::thread::{Beside, beside};
use crate::sys::uplink::UplinkChoice;
use crate::sys::userns::{Mapping, PrivateIds};

/// The pin of a network's bridge namespace. Not to be taken for a container of that name.
const BRIDGE: &str = "bridge.netns";

/// A network that is there.
///
/// Any number of processes and threads may have it open and connect containers at once.
#[derive(Debug)]
pub struct Network {
    options: NetworkOptions,
    record: Record,
}

impl Network {
    /// Makes a network. On an error nothing is left of it.
    pub fn create(
        options: &NetworkOptions,
        request: &NetworkRequest,
    ) -> Result<Self, NetworkError> {
        let id = &request.id;
        check_name(id)?;
        let mut undo = Rollback::new();
        let outside = Outside::look(options)?;
        let lock = lock(options)?;
        let others = records(options)?.known;
        let record = claim(options, request, &others, &outside)?;
        undo.push(|| drop(Network::remove_id(options, id)));
        let network = Network { options: options.clone(), record };
        // nft takes as long to load the table as the kernel takes to make the bridge.
        thread::scope(|scope| {
            let entered = beside(scope, || {
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
                NamespaceOwner::Maker => Mapping::shifted(ids).namespace(),
                NamespaceOwner::FirstId => ids.namespace(),
            };
            netns::pin(namespace.at("make a user namespace for", &pin)?.as_fd(), &pin)?;
        }
        link::make_bridge(&self.record, self.record.plan(&self.options), &self.bridge_pin())
    }

    /// Opens a network that another process made.
    pub fn open(options: &NetworkOptions, id: &str) -> Result<Self, NetworkError> {
        check_name(id)?;
        Ok(Network { options: options.clone(), record: read(options, id)? })
    }

    /// Returns the address that containers reach the host by, if they may.
    pub fn host_address(&self) -> Option<IpAddr> {
        if let Some(address) = self.record.uplink.as_ref().and_then(|uplink| uplink.address) {
            return Some(address);
        }
        Some(self.record.plan(&self.options).host().v4.into())
    }

    /// Returns the resolver that whoever is in this network reaches if they reach none of the host's.
    pub fn resolver(&self) -> Option<IpAddr> {
        uplink::resolver(&self.record, &self.options)
    }

    /// Returns what people should know of the way out; nothing if there is nothing to say.
    pub fn warning(&self) -> Option<String> {
        let uplink = self.record.uplink.as_ref().filter(|uplink| uplink.loses_half_closed)?;
        Some(format!(
            "{} is too old: connections hang, or lose the end of the answer, whose client closes its side first; install \
             slirp4netns, or passt of 2026-10 or newer",
            uplink.program.display()
        ))
    }

    /// Returns the name of the program that led out and has ended since, whoever ended it. The next container
    /// that is connected has it started again.
    pub fn lost_uplink(&self) -> Result<Option<&'static str>, NetworkError> {
        let Some(uplink) = &self.record.uplink else { return Ok(None) };
        let has_ended = uplink::has_ended(&self.options, &self.record.id)?;
        Ok(has_ended.then(|| uplink.kind.name()))
    }

    /// Checks that ports can be published at all, before anything is made for that.
    pub fn check_ports(
        options: &NetworkOptions,
        ports: &[PortMapping],
    ) -> Result<(), NetworkError> {
        match ports.first() {
            Some(port) if options.privilege.has_own_network() => {
                if options.uplink == UplinkChoice::None {
                    return Err(no_way_in(port));
                }
                outside::run(|| check_rights(ports))
            }
            _ => Ok(()),
        }
    }

    /// Returns the host's end of the network's link.
    pub(super) fn link(&self) -> &Interface {
        &self.record.link
    }

    /// Returns ids of the host that nobody else has as long as the network is there.
    pub fn private_ids(&self) -> PrivateIds {
        // No network gets a number beyond.
        PrivateIds::of_job(self.record.number).unwrap_or_default()
    }

    /// Returns the pinned user namespace of its containers, in which the private ids are those from 0
    /// on; none if they are in the host's.
    pub fn user_namespace(&self) -> Option<PathBuf> {
        self.record.user_namespace.then(|| self.user_pin())
    }

    /// Connects a container: makes its namespace, with addresses and routes, and publishes ports.
    /// On an error nothing is left of it.
    pub fn attach(&self, request: &EndpointRequest) -> Result<Endpoint, NetworkError> {
        let attached = self.attach_all(std::slice::from_ref(request));
        attached.map_err(|(_, error)| error).map(|mut endpoints| endpoints.remove(0))
    }

    /// Connects containers as [`attach`](Self::attach) does: addresses and ports are given out in order,
    /// the rest is done side by side. On an error, which comes with the number of its request, nothing is
    /// left of any.
    pub fn attach_all(
        &self,
        requests: &[EndpointRequest],
    ) -> Result<Vec<Endpoint>, (usize, NetworkError)> {
        // Between the choice of a port that nobody asked for and the time when it is listened on, somebody
        // else may take it.
        for _ in 1..TRIES_OF_PORTS {
            match self.try_to_attach_all(requests) {
                Err((at, NetworkError::PortInUse { port, .. }))
                    if !asks_for(&requests[at], port) => {}
                result => return result,
            }
        }
        self.try_to_attach_all(requests)
    }

    fn try_to_attach_all(
        &self,
        requests: &[EndpointRequest],
    ) -> Result<Vec<Endpoint>, (usize, NetworkError)> {
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
                let threads = all.iter().map(|one| beside(scope, || self.connect(one)));
                let threads: Vec<_> = threads.collect();
                let led_out = self.lead_out(&claimed);
                (threads.into_iter().map(Beside::join).collect::<Vec<_>>(), led_out)
            }),
        };
        led_out?;
        let connected = connected.into_iter().enumerate();
        let endpoints = connected.map(|(at, endpoint)| endpoint.map_err(|error| (at, error)));
        let endpoints = endpoints.collect::<Result<_, _>>()?;
        undo.disarm();
        Ok(endpoints)
    }

    /// Has a program lead out, if one is to: to the ports of containers that were claimed too. An error comes
    /// with the number of the container whose port it is about.
    fn lead_out(&self, claimed: &[EndpointRecord]) -> Result<(), (usize, NetworkError)> {
        if self.record.uplink.is_none() {
            return Ok(());
        }
        let at_first = |error| (0, error);
        let _lock = lock(&self.options).map_err(at_first)?;
        let record = read(&self.options, &self.record.id).map_err(at_first)?;
        let has_ports = claimed.iter().any(|endpoint| !endpoint.outside.is_empty());
        let is_first = uplink::is_missing(&self.options, &record.id).map_err(at_first)?;
        let when = if has_ports && !is_first { When::Changed } else { When::Missing };
        uplink::lead_out(&self.options, &record, when).map_err(|error| {
            let taken = claimed.iter().enumerate().find_map(|(at, endpoint)| {
                let taken = endpoint.outside.iter().find(|port| outside::run(|| is_taken(port)))?;
                Some((at, in_use(taken)))
            });
            taken.unwrap_or((0, error))
        })
    }

    /// Makes what was recorded of a container.
    fn connect(&self, endpoint: &EndpointRecord) -> Result<Endpoint, NetworkError> {
        let plan = self.record.plan(&self.options);
        let netns = self.pin(&endpoint.name);
        let owner = self.user_namespace().map(|pin| netns::open(&pin)).transpose()?;
        let owner = owner.as_ref().map(OwnedFd::as_fd);
        link::connect(&self.record, plan, endpoint.number, [&self.bridge_pin(), &netns], owner)?;
        let Pair { v4, v6 } = plan.container(endpoint.number);
        firewall::publish((&endpoint.published, Pair { v4, v6 }))?;
        let ipv6 = self.record.ipv6.then_some(IpAddr::from(v6));
        let addresses = [IpAddr::from(v4)].into_iter().chain(ipv6).collect();
        Ok(Endpoint {
            netns,
            addresses,
            published: endpoint.usable().to_vec(),
            resolver: uplink::resolver(&self.record, &self.options),
        })
    }

    /// Records a container, with an address and ports of the host that nobody else has.
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
                return Err(no_way_in(port));
            }
            ports => reserve(&Taken::by(records(&self.options)?)?, uplink, ports)?,
        };
        let (published, outside) = match uplink {
            None => (published, Vec::new()),
            // They come in by another address than they were sent to.
            Some(_) => (published.iter().map(Published::anywhere).collect(), published),
        };
        let endpoint = EndpointRecord { name: name.clone(), number, published, outside };
        record.endpoints.push(endpoint.clone());
        record.next = number + 1;
        record::write(&self.options, &record)?;
        Ok(endpoint)
    }

    /// Takes a container's connection away; that there is none is fine.
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
            false => uplink::lead_out(&self.options, &record, When::Changed),
        }
    }

    /// Removes the network, as [`Network::remove_id`] does.
    pub fn remove(self) -> Result<(), NetworkError> {
        Network::remove_id(&self.options, &self.record.id)
    }

    /// Removes a network, whatever is left of it; none is fine.
    ///
    /// With its pin gone the kernel takes the bridge namespace apart, and all links end there. That is in its own
    /// time, of milliseconds. A container that still runs keeps its namespace, and is alone in it.
    pub fn remove_id(options: &NetworkOptions, id: &str) -> Result<(), NetworkError> {
        check_name(id)?;
        let directory = directory(options, id);
        let lock = lock(options)?;
        match fs::symlink_metadata(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Nobody of us made it.
            Ok(found) if !found.is_dir() => return Ok(remove_tree(&directory)?),
            found => found.at("look up", &directory)?,
        };
        uplink::end_soon(options, id)?;
        let left = match read(options, id) {
            Ok(record) => Some(firewall::leave(&record.member(options))?),
            // Whoever was killed before it wrote the record had not made anything.
            Err(NetworkError::Unknown { .. }) => None,
            Err(error) if error.is_unreadable() => {
                link::leave_unrecorded(options, &directory.join(BRIDGE))?
            }
            Err(error) => return Err(error),
        };
        remove_pins(&directory)?;
        // Other networks need not wait for what the kernel has left to do.
        drop(lock);
        drop(left);
        Ok(())
    }

    /// Returns the ids of all networks that have a record, whether it can be read or not.
    pub fn ids(options: &NetworkOptions) -> Result<Vec<String>, NetworkError> {
        let records = records(options)?;
        let unreadable = records.unreadable.into_iter().map(|(id, _)| id);
        Ok(records.known.into_iter().map(|record| record.id).chain(unreadable).collect())
    }

    /// Returns the ids of the networks whose records nobody can read, with the reason.
    pub fn unreadable(
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

/// How often ports are chosen anew that others were quicker to take.
const TRIES_OF_PORTS: usize = 5;

/// Returns whether a port of the host is one that a container is to have, and no other.
fn asks_for(request: &EndpointRequest, port: u16) -> bool {
    let mut asked = request.ports.iter().filter_map(|mapping| mapping.host_ports.as_ref());
    asked.any(|ports| ports.contains(&port))
}

/// Removes the directory of a network with what is pinned there, even if something is pinned meanwhile.
fn remove_pins(directory: &Path) -> Result<(), NetworkError> {
    const TRIES: usize = 10;
    for attempt in 1.. {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            entries => entries.at("list", directory)?,
        };
        for path in entries.flatten().map(|entry| entry.path()) {
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

fn no_way_in(port: &PortMapping) -> NetworkError {
    let PortMapping { host_ports, container_port, protocol, .. } = port;
    let port = host_ports.as_ref().map_or(*container_port, |ports| *ports.start());
    NetworkError::NoWayIn { port, protocol: *protocol }
}

fn read(options: &NetworkOptions, id: &str) -> Result<Record, NetworkError> {
    let record = record::read(&directory(options, id).join(RECORD))?;
    record.ok_or_else(|| NetworkError::Unknown { id: id.to_owned() })
}

/// Checks what becomes the name of a file.
fn check_name(name: &str) -> Result<(), NetworkError> {
    let fits = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 128
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if fits { Ok(()) } else { Err(NetworkError::Name { name: name.to_owned() }) }
}
