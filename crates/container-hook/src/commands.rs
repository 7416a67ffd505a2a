//! The commands of the runner, run with containers of this host.

use container_hook_job::HookError;
use container_hook_job::JobState;
use container_hook_job::request::{ContainerArgs, PrepareJob, ScriptStep};
use container_hook_job::response::PrepareJobResponse;
use container_hook_job::{HookBackend, RequestOutcome};

use super::backend::EngineBackend;
use super::{cleanup_job, error, prepare_job, run_container_step, run_script_step};

impl HookBackend for EngineBackend<'_> {
    fn prepare(&self, job: &PrepareJob) -> Result<Option<PrepareJobResponse>, HookError> {
        prepare_job::run(self, job)
    }

    fn script_step(
        &self,
        step: &ScriptStep,
        state: Option<&JobState>,
    ) -> Result<RequestOutcome, HookError> {
        run_script_step::run(self, step, state).map(RequestOutcome::Become)
    }

    fn container_step(
        &self,
        step: &ContainerArgs,
        _state: Option<&JobState>,
        pass_on: &dyn Fn(u32),
    ) -> Result<RequestOutcome, HookError> {
        match run_container_step::run(self, step, pass_on) {
            Ok(status) => Ok(RequestOutcome::Ended(status)),
            Err(error) => match error::program_code(&error) {
                Some(code) => Ok(RequestOutcome::Failed { code, error: Box::new(error) }),
                None => Err(error),
            },
        }
    }

    fn cleanup(&self) -> Result<(), HookError> {
        cleanup_job::run(self)
    }
}
