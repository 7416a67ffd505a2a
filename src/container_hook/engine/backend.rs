//! What the commands of the runner use of this host.

use std::path::PathBuf;

use super::job::Jobs;
use super::settings::EngineSettings;
use crate::bundle::IdMapping;
use crate::container::Engine;
use crate::container_hook::context::HookContext;
use crate::image::{Credentials, RegistryClient};
use crate::network::NetworkOptions;

/// The backend that runs containers of one host.
pub struct EngineBackend<'a> {
    pub context: HookContext<'a>,
    pub settings: &'a EngineSettings,
    pub engine: &'a Engine,
    /// Where networks get their addresses from.
    pub network: &'a NetworkOptions,
    pub registries: &'a RegistryClient,
    /// Logins for images whose login the request does not bring.
    pub credentials: &'a Credentials,
}

impl EngineBackend<'_> {
    pub(super) fn jobs(&self) -> Jobs {
        Jobs::new(&self.engine.run)
    }

    /// Returns where a volume with a name is.
    pub(super) fn volume(&self, name: &str) -> PathBuf {
        self.engine.volumes_of(&self.context.runner.owner()).join(name)
    }

    /// Returns whose the files in the runner's directories are to be; none if they are to be as they
    /// are, or if the kernel maps none.
    pub(super) fn id_mapping(&self) -> Option<IdMapping> {
        let (host_uid, host_gid) = self.context.runner.user;
        let is_mapped =
            self.settings.runner_owns_files && self.engine.privilege.has_idmapped_mounts();
        is_mapped.then_some(IdMapping { host_uid, host_gid, user: None })
    }
}
