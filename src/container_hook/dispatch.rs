//! Which command of the runner is which call of the backend.

use tracing::info_span;

use super::backend::{Backend, Outcome};
use super::context::HookContext;
use super::error::HookError;
use super::request::{Command, PrepareJob, Request};
use super::response::ResponseFile;
use super::state::JobState;
use crate::sys::error::chain;

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
