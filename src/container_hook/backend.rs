//! What carries the commands of the runner out: containers of this host, or pods of a cluster.

use std::process::{Command as Program, ExitStatus};

use super::error::HookError;
use super::request::{ContainerArgs, PrepareJob, ScriptStep};
use super::response::PrepareJobResponse;
use super::state::JobState;

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
