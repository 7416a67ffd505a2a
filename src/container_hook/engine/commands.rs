//! The commands of the runner, carried out with containers of this host.

use super::backend::EngineBackend;
use super::{cleanup_job, prepare_job, run_container_step, run_script_step};
use crate::container_hook::backend::{Backend, Outcome};
use crate::container_hook::error::HookError;
use crate::container_hook::request::{ContainerArgs, PrepareJob, ScriptStep};
use crate::container_hook::response::PrepareJobResponse;
use crate::container_hook::state::JobState;

impl Backend for EngineBackend<'_> {
    fn prepare(&self, job: &PrepareJob) -> Result<Option<PrepareJobResponse>, HookError> {
        prepare_job::run(self, job)
    }

    fn script_step(
        &self,
        step: &ScriptStep,
        state: Option<&JobState>,
    ) -> Result<Outcome, HookError> {
        run_script_step::run(self, step, state).map(Outcome::Become)
    }

    fn container_step(
        &self,
        step: &ContainerArgs,
        _state: Option<&JobState>,
        pass_on: &dyn Fn(u32),
    ) -> Result<Outcome, HookError> {
        run_container_step::run(self, step, pass_on).map(Outcome::Ended)
    }

    fn cleanup(&self) -> Result<(), HookError> {
        cleanup_job::run(self)
    }
}
