//! `run_script_step`: runs a program in the job container, started by the agent there. Files are exchanged
//! over the step's stream, before and after the step.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use container_hook_job::HookError;
use container_hook_job::JobState;
use container_hook_job::RequestOutcome;
use container_hook_job::request::ScriptStep;
use container_hook_job::script::frame;
use oci_hooks_engine::container::StepEnd;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::random_u64;
use tokio::time::timeout;

use super::agent::{self, AgentError, AgentSession};
use super::backend::{JOB, KubernetesBackend};
use super::error::SignalError;
use super::interrupts::{CancelFlagged, run_unless_interrupted};
use super::services;

/// Timeout for downloading the files of a cancelled step.
const AFTER_CANCEL: Duration = Duration::from_secs(2);

pub(super) async fn run(
    backend: &KubernetesBackend<'_>,
    step: &ScriptStep,
    state: Option<&JobState>,
) -> Result<RequestOutcome, HookError> {
    let pod = backend.job_pod(state)?;
    let copies = state.and_then(|state| state.pod.as_ref()).is_some_and(|pod| pod.copies);
    let directory = step.working_directory.clone().unwrap_or_default();
    let frame = frame(step, directory.into())?;
    let mut signals = backend.catch_signals()?;
    let opener = backend.opener(pod, JOB);
    let mut session = AgentSession::new(&opener);
    let files = backend.files()?;
    if copies {
        let put = async { Ok(files.upload_for_step(&mut session).await?) };
        run_unless_interrupted::<_, HookError>(signals.as_mut(), put).await?;
    }
    let mut signals = CancelFlagged::new(signals.as_mut());
    let id = new_id();
    let step = backend.step(&id, "the job container");
    let ended = agent::run(&mut session, step, frame, &mut signals).await;
    let is_cancelled = signals.is_cancelled;
    let downloaded = async {
        match copies && is_reachable(&ended) {
            true => files.download_after_step(&mut session).await,
            false => Ok(()),
        }
    };
    let reported = async {
        // After a cancellation the runner waits only briefly.
        if !is_cancelled {
            services::report_after_step(backend, state).await;
        }
    };
    let (got, ()) = tokio::join!(download_until_cancelled(is_cancelled, downloaded), reported);
    outcome(backend, ended, got)
}

/// Returns whether the container of a step that has ended can be expected to answer.
pub fn is_reachable(end: &Result<StepEnd, AgentError>) -> bool {
    end.as_ref().err().is_none_or(AgentError::is_reachable)
}

/// Downloads the files of a step; after a cancellation, only for as long as the runner waits for the hook.
pub async fn download_until_cancelled<E>(
    is_cancelled: bool,
    taken: impl Future<Output = Result<(), E>>,
) -> Result<(), HookError>
where
    HookError: From<E>,
{
    if !is_cancelled {
        return Ok(taken.await?);
    }
    let seconds = AFTER_CANCEL.as_secs();
    let ended = timeout(AFTER_CANCEL, taken).await;
    Ok(ended.map_err(|_| SignalError::Cancelled { seconds })??)
}

/// Returns the outcome of a step. A step fails if its files could not be downloaded.
pub fn outcome(
    backend: &KubernetesBackend<'_>,
    end: Result<StepEnd, AgentError>,
    got: Result<(), HookError>,
) -> Result<RequestOutcome, HookError> {
    let status = match end {
        Ok(end) => exit_status(end),
        // The exit code that a shell reports for a program that it cannot run.
        Err(error) => {
            return Ok(RequestOutcome::Failed {
                code: error.code(),
                error: Box::new(error.into()),
            });
        }
    };
    match got {
        // The step's own failure takes precedence.
        Err(error) if !status.success() => {
            backend.context.log.warning(&chain(&error));
            Ok(RequestOutcome::Ended(status))
        }
        got => got.map(|()| RequestOutcome::Ended(status)),
    }
}

fn exit_status(end: StepEnd) -> ExitStatus {
    match end {
        StepEnd::Exited(code) => ExitStatus::from_raw(i32::from(code) << 8),
        StepEnd::Signalled(signal) => ExitStatus::from_raw(i32::from(signal)),
    }
}

/// Returns a unique step id.
pub fn new_id() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_ends_with_the_result_of_its_program() {
        assert_eq!(exit_status(StepEnd::Exited(7)).code(), Some(7));
        assert_eq!(exit_status(StepEnd::Exited(137)).code(), Some(137));
        assert_eq!(exit_status(StepEnd::Signalled(9)).signal(), Some(9));
    }
}
