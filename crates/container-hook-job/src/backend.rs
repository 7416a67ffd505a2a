//! Backends that run the commands of the runner: containers on this host, or pods of a cluster.

use std::process::{Command as Program, ExitStatus};

use oci_hooks_files::error::chain;
use tracing::info_span;

use super::context::HookContext;
use super::error::HookError;
use super::request::{ContainerArgs, HookCommand, HookRequest, PrepareJob, ScriptStep};
use super::response::{PrepareJobResponse, ResponseFile};
use super::state::JobState;

/// Runs the containers of jobs and steps.
pub trait HookBackend {
    /// Starts the containers of a job and waits until they are healthy; returns none if the job has no
    /// containers. Leftovers of the runner's earlier job are removed first.
    ///
    /// # Errors
    ///
    /// Fails if a container is rejected or does not become healthy; the job is then removed completely.
    fn prepare(&self, job: &PrepareJob) -> Result<Option<PrepareJobResponse>, HookError>;

    /// Runs a program in the job container.
    ///
    /// # Errors
    ///
    /// Fails if there is no job container, or the program cannot be started in it.
    fn script_step(
        &self,
        step: &ScriptStep,
        state: Option<&JobState>,
    ) -> Result<RequestOutcome, HookError>;

    /// Runs a container action to its end. `pass_on` is called with the id of a process, to forward
    /// signals to it while the action runs.
    ///
    /// # Errors
    ///
    /// Fails if the container is rejected or cannot be started.
    fn container_step(
        &self,
        step: &ContainerArgs,
        state: Option<&JobState>,
        pass_on: &dyn Fn(u32),
    ) -> Result<RequestOutcome, HookError>;

    /// Removes the runner's job: containers or pods, networks and files.
    ///
    /// # Errors
    ///
    /// Fails if a part of the job could not be removed; the next call tries again.
    fn cleanup(&self) -> Result<(), HookError>;
}

/// The way in which the program ends after a request.
#[derive(Debug)]
pub enum RequestOutcome {
    /// Exit with code 0.
    Done,
    /// Exit with the status of the step's container.
    Ended(ExitStatus),
    /// Report the error and exit with this code: the step did not run, or its exit status is unknown.
    Failed { code: u8, error: Box<HookError> },
    /// Exec this program, so that the kernel handles the step's streams, signals and exit code.
    Become(Program),
}

impl HookContext<'_> {
    /// Runs a request. `pass_on` is called with the id of a process, to forward signals to it while
    /// a container step runs.
    ///
    /// # Errors
    ///
    /// Fails if the request is rejected or the backend fails.
    pub fn run(
        &self,
        backend: &dyn HookBackend,
        request: &HookRequest,
        pass_on: &dyn Fn(u32),
    ) -> Result<RequestOutcome, HookError> {
        self.dispatch(backend, request, pass_on).inspect_err(|error| {
            // The error of the request matters more than the error of the audit log.
            for (subject, denials) in error.denials() {
                if let Err(unwritten) = self.audit.write(self.runner, subject, denials) {
                    self.log.warning(&chain(&unwritten));
                }
            }
        })
    }

    fn dispatch(
        &self,
        backend: &dyn HookBackend,
        request: &HookRequest,
        pass_on: &dyn Fn(u32),
    ) -> Result<RequestOutcome, HookError> {
        // Opened first, so that no container is started if the response cannot be written.
        let response = request.response_file.as_deref();
        let open = |path| ResponseFile::open(&self.runner.files, path);
        let response = response.map(open).transpose()?;
        let _span = info_span!("request", command = request.command.name()).entered();
        match &request.command {
            HookCommand::PrepareJob(job) => self.prepare(backend, job, response),
            HookCommand::CleanupJob => backend.cleanup().map(|()| RequestOutcome::Done),
            HookCommand::RunScriptStep(step) => {
                let state = JobState::read(request.state.as_ref());
                backend.script_step(step, state.as_ref())
            }
            HookCommand::RunContainerStep(step) => {
                let state = JobState::read(request.state.as_ref());
                backend.container_step(step, state.as_ref(), pass_on)
            }
        }
    }

    fn prepare(
        &self,
        backend: &dyn HookBackend,
        job: &PrepareJob,
        response: Option<ResponseFile>,
    ) -> Result<RequestOutcome, HookError> {
        let answer = backend.prepare(job)?;
        let (Some(answer), Some(response)) = (answer, response) else {
            return Ok(RequestOutcome::Done);
        };
        if let Err(error) = response.write(&answer) {
            // The runner does not learn of the job, so remove it and report the first error.
            if let Err(also) = backend.cleanup() {
                self.log.warning(&chain(&also));
            }
            return Err(error.into());
        }
        Ok(RequestOutcome::Done)
    }
}
