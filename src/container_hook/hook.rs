//! One call of the runner: what it can use, and which command it is.

use std::path::PathBuf;
use std::process::{Command as Program, ExitStatus};

use super::audit::{self, AuditLog};
use super::error::HookError;
use super::job::Jobs;
use super::log::Log;
use super::plan::Plan;
use super::request::{Command, Request};
use super::response::ResponseFile;
use super::runner::Runner;
use super::settings::Settings;
use super::{cleanup_job, prepare_job, run_container_step, run_script_step};
use crate::bundle::Ownership;
use crate::container::Engine;
use crate::image::{Credentials, RegistryClient};
use crate::network::NetworkOptions;
use crate::sys::error::chain;

/// Everything a call of the runner can use.
pub struct Hook<'a> {
    /// Containers.
    pub engine: &'a Engine,
    /// Where networks get their addresses from.
    pub network: &'a NetworkOptions,
    /// Where images come from.
    pub registries: &'a RegistryClient,
    /// Logins for images whose login the request does not bring.
    pub credentials: &'a Credentials,
    /// What the admin decides.
    pub settings: &'a Settings,
    /// Who calls.
    pub runner: &'a Runner,
    /// What is written down of what is done.
    pub audit: &'a AuditLog,
    /// What the runner shows.
    pub log: &'a dyn Log,
}

/// What is left to do for the program.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing: end with code 0.
    Done,
    /// The step's container ended like this: end like it.
    Ended(ExitStatus),
    /// Become this program, so that the step's streams, signals and code are the kernel's business.
    Become(Program),
}

impl Hook<'_> {
    /// Carries a request out. `pass_on` gets the process that signals are to be sent to while a
    /// container step runs.
    pub fn run(&self, request: &Request, pass_on: &dyn Fn(u32)) -> Result<Outcome, HookError> {
        let result = self.carry_out(request, pass_on).inspect_err(|error| {
            // The request's own fault is what people want to hear of.
            if let Err(unwritten) = audit::refused(self, error) {
                self.log.warning(&chain(&unwritten));
            }
        });
        // Root reads the template for whoever calls by sudo.
        if self.runner.files.caller().is_none() {
            return result;
        }
        result.map_err(HookError::without_template)
    }

    fn carry_out(&self, request: &Request, pass_on: &dyn Fn(u32)) -> Result<Outcome, HookError> {
        // Opened first: without a place for the answer nothing may be started.
        let response = request.response_file.as_deref();
        let open = |path| ResponseFile::open(&self.runner.files, path);
        let response = response.map(open).transpose()?;
        match &request.command {
            Command::PrepareJob(job) => prepare_job::run(self, job, response),
            Command::CleanupJob => cleanup_job::run(self),
            Command::RunScriptStep(step) => {
                run_script_step::run(self, step, request.state.as_ref())
            }
            Command::RunContainerStep(step) => run_container_step::run(self, step, pass_on),
        }
    }

    pub(super) fn jobs(&self) -> Jobs {
        Jobs::new(&self.engine.run)
    }

    /// Returns where a volume with a name is.
    pub(super) fn volume(&self, name: &str) -> PathBuf {
        self.engine.volumes_of(&self.runner.owner()).join(name)
    }

    /// Makes the volumes with names available to containers that have some.
    pub(super) fn mount_volumes(&self, plans: &[Plan<'_>]) -> Result<(), HookError> {
        if plans.iter().any(Plan::has_named_volumes) {
            let limit_bytes = self.settings.volumes_bytes;
            self.engine.mount_volumes(&self.runner.owner(), limit_bytes)?;
        }
        Ok(())
    }

    /// Returns whose the files in the runner's directories are to be; none if they are to be as they
    /// are.
    pub(super) fn ownership(&self) -> Option<Ownership> {
        let (host_uid, host_gid) = self.runner.user;
        self.settings.runner_owns_files.then_some(Ownership { host_uid, host_gid })
    }
}
