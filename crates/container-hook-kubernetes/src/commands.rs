//! The commands of the runner, carried out with pods of a cluster.

use container_hook_job::HookError;
use container_hook_job::JobState;
use container_hook_job::request::{ContainerArgs, PrepareJob, ScriptStep};
use container_hook_job::response::PrepareJobResponse;
use container_hook_job::{HookBackend, RequestOutcome};

use super::backend::KubernetesBackend;
use super::{cleanup, container_step, prepare, script_step};

impl HookBackend for KubernetesBackend<'_> {
    fn prepare(&self, job: &PrepareJob) -> Result<Option<PrepareJobResponse>, HookError> {
        self.cluster.run(prepare::run(self, job))
    }

    fn script_step(
        &self,
        step: &ScriptStep,
        state: Option<&JobState>,
    ) -> Result<RequestOutcome, HookError> {
        self.cluster.run(script_step::run(self, step, state))
    }

    fn container_step(
        &self,
        step: &ContainerArgs,
        state: Option<&JobState>,
        // The step's agent forwards signals; this process has no child to forward them to.
        _pass_on: &dyn Fn(u32),
    ) -> Result<RequestOutcome, HookError> {
        self.cluster.run(container_step::run(self, step, state))
    }

    fn cleanup(&self) -> Result<(), HookError> {
        self.cluster.run(cleanup::run(self))
    }
}
