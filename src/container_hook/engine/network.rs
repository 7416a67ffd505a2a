//! The network of a job, and who is reached by which name in it.

use std::net::IpAddr;
use std::path::PathBuf;

use super::backend::EngineBackend;
use super::job::Peer;
use super::pod::Addresses;
use crate::bundle::HostEntry;
use crate::container_hook::error::HookError;
use crate::container_hook::options::NetworkMode;
use crate::network::{
    Endpoint, EndpointRequest, NamespaceOwner, Network, NetworkRequest, PortMapping,
};
use crate::sys::userns::PrivateIds;

/// How a container is connected.
pub enum Connection<'a> {
    Job {
        endpoint: &'a Endpoint,
        gateway: Option<IpAddr>,
        hosts: Vec<HostEntry>,
    },
    /// With the host's own interfaces.
    Host,
    None,
}

impl Connection<'_> {
    /// Returns the addresses of the container and of the host in its network.
    pub fn addresses(&self) -> Addresses<'_> {
        match self {
            Connection::Job { endpoint, gateway, .. } => {
                Addresses { own: &endpoint.addresses, host: *gateway }
            }
            Connection::Host | Connection::None => Addresses::default(),
        }
    }
}

impl Connection<'_> {
    /// Returns the resolver that the container reaches if it reaches none of the host's.
    pub fn resolver(&self) -> Option<IpAddr> {
        match self {
            Connection::Job { endpoint, .. } => endpoint.resolver,
            Connection::Host | Connection::None => None,
        }
    }
}

/// The network of a job.
pub struct JobNetwork {
    id: String,
    network: Network,
}

impl JobNetwork {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn create(backend: &EngineBackend<'_>, id: &str) -> Result<Self, HookError> {
        // One of a user's own is around all of the job, and has no further ids to give away. What a Dockerfile runs
        // has one whatever the settings say of containers.
        let user_namespace = backend.engine.privilege.has_idmapped_mounts();
        // runc limits processes in it from outside, which only its owner may without CAP_SYS_RESOURCE.
        let user_namespace = user_namespace.then_some(NamespaceOwner::Maker);
        let request = NetworkRequest { id: id.to_owned(), user_namespace };
        let network = Network::create(backend.network, &request)?;
        if let Some(warning) = network.warning() {
            backend.context.log.warning(&warning);
        }
        Ok(JobNetwork { id: id.to_owned(), network })
    }

    pub(super) fn open(backend: &EngineBackend<'_>, id: &str) -> Result<Self, HookError> {
        let network = Network::open(backend.network, id)?;
        if let Some(program) = network.lost_uplink()? {
            backend.context.log.warning(&format!(
                "{program}, by which the job reaches the network, has ended: it was killed, or the machine had no \
                 memory left; what was connected by it is not any more"
            ));
        }
        Ok(JobNetwork { id: id.to_owned(), network })
    }

    /// Returns the pinned user namespace of the job; none if this process is in one.
    pub fn user_namespace(&self) -> Option<PathBuf> {
        self.network.user_namespace()
    }

    /// Returns ids of the host that nobody but the job has.
    pub fn private_ids(&self) -> PrivateIds {
        self.network.private_ids()
    }

    /// Connects a container and publishes its ports.
    pub fn attach(&self, id: &str, ports: Vec<PortMapping>) -> Result<Endpoint, HookError> {
        Ok(self.network.attach(&request(id, &ports))?)
    }

    /// Connects containers side by side, each with its id and the ports that it publishes. An error comes
    /// with the number of its container.
    pub fn attach_all(
        &self,
        containers: &[(&str, Vec<PortMapping>)],
    ) -> Result<Vec<Endpoint>, (usize, HookError)> {
        let requests: Vec<_> = containers.iter().map(|(id, ports)| request(id, ports)).collect();
        self.network.attach_all(&requests).map_err(|(at, error)| (at, error.into()))
    }

    /// Takes a container's end away.
    pub fn detach(&self, id: &str) -> Result<(), HookError> {
        Ok(self.network.detach(&id[..12])?)
    }

    /// Returns how a container is connected, with an endpoint if it is on this network.
    pub fn connection<'a>(
        &self,
        mode: NetworkMode,
        endpoint: Option<&'a Endpoint>,
        peers: &[Peer],
    ) -> Connection<'a> {
        match (mode, endpoint) {
            (NetworkMode::Job, Some(endpoint)) => Connection::Job {
                endpoint,
                gateway: self.network.host_address(),
                hosts: peers
                    .iter()
                    .filter(|peer| !peer.names.is_empty() && peer.addresses != endpoint.addresses)
                    .flat_map(|peer| {
                        peer.addresses.iter().map(|address| HostEntry {
                            address: *address,
                            names: peer.names.clone(),
                        })
                    })
                    .collect(),
            },
            (NetworkMode::Host, _) => Connection::Host,
            _ => Connection::None,
        }
    }
}

fn request(id: &str, ports: &[PortMapping]) -> EndpointRequest {
    // The beginning of an id is enough for a name that is seen by people.
    EndpointRequest { name: id[..12].to_owned(), ports: ports.to_vec() }
}
