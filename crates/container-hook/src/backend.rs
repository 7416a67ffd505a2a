//! The shared state of the runner's commands on this host.

use std::path::PathBuf;

use container_hook_job::HookContext;
use container_hook_job::HookError;
use container_hook_job::request::PrepareJob;
use oci_hooks_engine::bundle::IdMapping;
use oci_hooks_engine::container::Engine;
use oci_hooks_engine::network::NetworkOptions;
use oci_hooks_image::{Credentials, RegistryClient};

use super::job::JobRecords;
use super::prepare_job;
use super::settings::EngineSettings;

/// The backend that runs containers on this host.
pub struct EngineBackend<'a> {
    pub context: HookContext<'a>,
    pub settings: &'a EngineSettings,
    pub engine: &'a Engine,
    /// Options of job networks, such as their addresses.
    pub network: &'a NetworkOptions,
    pub registries: &'a RegistryClient,
    /// Logins for images that come without a login in the request.
    pub credentials: &'a Credentials,
}

impl EngineBackend<'_> {
    /// Checks the request of a job, and the template, as `prepare_job` does before it starts containers.
    pub fn check_job(&self, job: &PrepareJob) -> Result<(), HookError> {
        prepare_job::check(self, job)
    }

    pub(super) fn jobs(&self) -> JobRecords {
        JobRecords::new(&self.engine.run)
    }

    /// Returns the directory of a named volume.
    pub(super) fn volume(&self, name: &str) -> PathBuf {
        self.engine.volumes_of(&self.context.runner.owner()).join(name)
    }

    /// Returns the id mapping for mounts of host directories; none without root on the host, or if
    /// the settings turn it off. With `may_fail`, a file system that cannot map ids may be mounted
    /// unmapped (see [`IdMapping::User`]): only for mounts in which containers create no files for
    /// the runner.
    pub(super) fn id_mapping(&self, may_fail: bool) -> Option<IdMapping> {
        let (host_uid, host_gid) = self.context.runner.user;
        let is_mapped =
            self.settings.runner_owns_files && self.engine.privilege.has_idmapped_mounts();
        is_mapped.then_some(IdMapping::User {
            host_uid,
            host_gid,
            user: None,
            is_required: !may_fail,
        })
    }
}
