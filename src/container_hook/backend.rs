//! What carries the commands of the runner out: containers of this host, or pods of a cluster.

use std::process::{Command as Program, ExitStatus};

use tracing::info_span;

use super::context::HookContext;
use super::error::HookError;
use super::request::{Command, ContainerArgs, PrepareJob, Request, ScriptStep};
use super::response::{PrepareJobResponse, ResponseFile};
use super::state::JobState;
use crate::sys::error::chain;

/// Runs the containers of jobs and steps.
pub trait Backend {
    /// Starts the containers of a job and waits until they are healthy; none if it has none. What an
    /// earlier job of the runner left is removed first.
    ///
    /// # Errors
    ///
    /// Fails if a container is rejected or does not become healthy; nothing of the job is left then.
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
    ) -> Result<Outcome, HookError>;

    /// Runs a container action to its end. `pass_on` gets the process that signals are to be sent to
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// Fails if the container is rejected or cannot be started.
    fn container_step(
        &self,
        step: &ContainerArgs,
        state: Option<&JobState>,
        pass_on: &dyn Fn(u32),
    ) -> Result<Outcome, HookError>;

    /// Removes everything of the runner's job.
    ///
    /// # Errors
    ///
    /// Fails if something of it is left; the next call tries again.
    fn cleanup(&self) -> Result<(), HookError>;
}

/// What is left to do for the program.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing: end with code 0.
    Done,
    /// The step's container ended like this: end like it.
    Ended(ExitStatus),
    /// There was no step, or it is not known how it ended: say why, and end with this code.
    Failed { code: u8, error: Box<HookError> },
    /// Become this program, so that the step's streams, signals and code are the kernel's business.
    Become(Program),
}

impl HookContext<'_> {
    /// Carries a request out. `pass_on` gets the process that signals are to be sent to while a
    /// container step runs.
    ///
    /// # Errors
    ///
    /// Fails if the request is rejected or the backend cannot carry it out.
    pub fn run(
        &self,
        backend: &dyn Backend,
        request: &Request,
        pass_on: &dyn Fn(u32),
    ) -> Result<Outcome, HookError> {
        self.dispatch(backend, request, pass_on).inspect_err(|error| {
            // The request's own fault is what people want to hear of.
            let (subject, denials) = error.denials();
            if let Err(unwritten) = self.audit.write(self.runner, subject, denials) {
                self.log.warning(&chain(&unwritten));
            }
        })
    }

    fn dispatch(
        &self,
        backend: &dyn Backend,
        request: &Request,
        pass_on: &dyn Fn(u32),
    ) -> Result<Outcome, HookError> {
        // Opened first: without a place for the answer nothing may be started.
        let response = request.response_file.as_deref();
        let open = |path| ResponseFile::open(&self.runner.files, path);
        let response = response.map(open).transpose()?;
        let _span = info_span!("request", command = request.command.name()).entered();
        match &request.command {
            Command::PrepareJob(job) => self.prepare(backend, job, response),
            Command::CleanupJob => backend.cleanup().map(|()| Outcome::Done),
            Command::RunScriptStep(step) => {
                let state = JobState::read(request.state.as_ref());
                backend.script_step(step, state.as_ref())
            }
            Command::RunContainerStep(step) => {
                let state = JobState::read(request.state.as_ref());
                backend.container_step(step, state.as_ref(), pass_on)
            }
        }
    }

    fn prepare(
        &self,
        backend: &dyn Backend,
        job: &PrepareJob,
        response: Option<ResponseFile>,
    ) -> Result<Outcome, HookError> {
        let answer = backend.prepare(job)?;
        let (Some(answer), Some(response)) = (answer, response) else { return Ok(Outcome::Done) };
        if let Err(error) = response.write(&answer) {
            // The runner does not know of the job. The first error is what people have to hear of.
            if let Err(also) = backend.cleanup() {
                self.log.warning(&chain(&also));
            }
            return Err(error.into());
        }
        Ok(Outcome::Done)
    }
}
