//! The commands of the runner, carried out with pods of a cluster.

use super::backend::KubernetesBackend;
use super::{cleanup, container_step, prepare, script_step};
use crate::container_hook::backend::{Backend, Outcome};
use crate::container_hook::error::HookError;
use crate::container_hook::request::{ContainerArgs, PrepareJob, ScriptStep};
use crate::container_hook::response::PrepareJobResponse;
use crate::container_hook::state::JobState;

impl Backend for KubernetesBackend<'_> {
    fn prepare(&self, job: &PrepareJob) -> Result<Option<PrepareJobResponse>, HookError> {
        self.cluster.run(prepare::run(self, job))
    }

    fn script_step(
        &self,
        step: &ScriptStep,
        state: Option<&JobState>,
    ) -> Result<Outcome, HookError> {
        self.cluster.run(script_step::run(self, step, state))
    }

    fn container_step(
        &self,
        step: &ContainerArgs,
        state: Option<&JobState>,
        // Signals are passed on by the agent of the step, not to a process here.
        _pass_on: &dyn Fn(u32),
    ) -> Result<Outcome, HookError> {
        self.cluster.run(container_step::run(self, step, state))
    }

    fn cleanup(&self) -> Result<(), HookError> {
        self.cluster.run(cleanup::run(self))
    }
}
