//! The network of a job, and the host names in it.

use std::net::IpAddr;
use std::path::PathBuf;

use container_hook_job::HookError;
use oci_hooks_engine::network::{
    EndpointRequest, NamespaceOwner, Network, NetworkEndpoint, NetworkError, NetworkOptions,
    NetworkRequest, PortMapping,
};
use oci_hooks_host::userns::PrivateIds;

use super::backend::EngineBackend;
use super::plan::LaunchPlan;

/// Suffix that makes the id of a job's network that of its build's network.
const BUILD: &str = "-build";

/// The network of a job, or of a build.
pub struct JobNetwork {
    id: String,
    network: Network,
}

impl JobNetwork {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn create(
        backend: &EngineBackend<'_>,
        id: &str,
        plans: &[LaunchPlan<'_>],
    ) -> Result<Self, HookError> {
        let created = JobNetwork::make(backend, id.to_owned(), plans)?;
        if let Some(warning) = created.network.warning() {
            backend.context.log.warning(&warning);
        }
        Ok(created)
    }

    /// Creates the network of a build, in place of one that a killed step left.
    pub(super) fn create_for_build(
        backend: &EngineBackend<'_>,
        job: &JobNetwork,
        plan: &LaunchPlan<'_>,
    ) -> Result<Self, HookError> {
        let id = id_for_build(&job.id);
        Network::remove_id(backend.network, &id)?;
        JobNetwork::make(backend, id, std::slice::from_ref(plan))
    }

    fn make(
        backend: &EngineBackend<'_>,
        id: String,
        plans: &[LaunchPlan<'_>],
    ) -> Result<Self, HookError> {
        // A rootless job already runs in a user namespace, which has no more ids to map. Builds need the user
        // namespace even if the settings turn it off for containers.
        let user_namespace = backend.engine.privilege.has_idmapped_mounts();
        let user_namespace =
            user_namespace.then(|| match plans.iter().all(LaunchPlan::can_have_other_owner) {
                true => NamespaceOwner::FirstId,
                false => NamespaceOwner::Creator,
            });
        let request = NetworkRequest { id: id.clone(), user_namespace };
        let network = Network::create(backend.network, &request)?;
        Ok(JobNetwork { id, network })
    }

    pub(super) fn remove(self) -> Result<(), HookError> {
        Ok(self.network.remove()?)
    }

    pub(super) fn open(backend: &EngineBackend<'_>, id: &str) -> Result<Self, HookError> {
        let network = Network::open(backend.network, id)?;
        if let Some(program) = network.find_lost_uplink()? {
            backend.context.log.warning(&format!(
                "{program}, which connects the job to the network, has exited: it was killed, or the machine ran \
                 out of memory; connections of the job are lost"
            ));
        }
        Ok(JobNetwork { id: id.to_owned(), network })
    }

    /// Returns the pinned user namespace of the job; none if this process is in one.
    pub fn user_namespace(&self) -> Option<PathBuf> {
        self.network.user_namespace()
    }

    /// Returns host ids that only the job uses.
    pub fn private_ids(&self) -> PrivateIds {
        self.network.private_ids()
    }

    /// Connects a container and publishes its ports.
    pub fn attach(&self, id: &str, ports: Vec<PortMapping>) -> Result<NetworkEndpoint, HookError> {
        Ok(self.network.attach(&request(id, &ports))?)
    }

    /// Connects containers in parallel, each with its id and the ports to publish. An error has the index of
    /// its container.
    pub fn attach_all(
        &self,
        containers: &[(&str, Vec<PortMapping>)],
    ) -> Result<Vec<NetworkEndpoint>, (usize, HookError)> {
        let requests: Vec<_> = containers.iter().map(|(id, ports)| request(id, ports)).collect();
        self.network.attach_all(&requests).map_err(|(at, error)| (at, error.into()))
    }

    /// Disconnects a container.
    pub fn detach(&self, id: &str) -> Result<(), HookError> {
        Ok(self.network.detach(&id[..12])?)
    }

    /// Returns the address of the host in the network.
    pub fn host_address(&self) -> IpAddr {
        self.network.host_address()
    }
}

/// Removes the network of a job and that of its build, if they exist.
pub(super) fn remove_networks(options: &NetworkOptions, job: &str) -> Result<(), NetworkError> {
    Network::remove_id(options, &id_for_build(job)).and(Network::remove_id(options, job))
}

/// Returns the id of the network of the job that a network, or that of a build, belongs to; none for a
/// network of another program.
pub(super) fn job_of(id: &str) -> Option<&str> {
    let job = id.strip_suffix(BUILD).unwrap_or(id);
    (job.len() == 12 && job.bytes().all(|b| b.is_ascii_hexdigit())).then_some(job)
}

fn id_for_build(job: &str) -> String {
    format!("{job}{BUILD}")
}

fn request(id: &str, ports: &[PortMapping]) -> EndpointRequest {
    // A short id is unique enough for a name.
    EndpointRequest { name: id[..12].to_owned(), ports: ports.to_vec() }
}
