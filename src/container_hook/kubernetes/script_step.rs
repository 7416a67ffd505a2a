//! `run_script_step`: a program in the job container, started by the agent there. Files go by the same stream
//! as the step, before it and after it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::timeout;

use super::agent::{self, AgentError, Session};
use super::backend::{JOB, KubernetesBackend};
use super::client::ClusterOpener;
use super::error::KubernetesError;
use super::interrupts::{Remembered, unless_interrupted};
use crate::container::StepEnd;
use crate::container_hook::backend::Outcome;
use crate::container_hook::error::HookError;
use crate::container_hook::request::ScriptStep;
use crate::container_hook::script::frame;
use crate::container_hook::state::JobState;
use crate::sys::error::chain;
use crate::sys::fs::random_u64;

/// How long is waited for the files of a step that was cancelled.
const AFTER_CANCEL: Duration = Duration::from_secs(2);

pub(super) async fn run(
    backend: &KubernetesBackend<'_>,
    step: &ScriptStep,
    state: Option<&JobState>,
) -> Result<Outcome, HookError> {
    let pod = backend.job_pod(state)?;
    let copies = state.and_then(|state| state.pod.as_ref()).is_some_and(|pod| pod.copies);
    let directory = step.working_directory.clone().unwrap_or_default();
    let frame = frame(step, directory.into())?;
    let mut signals = backend.catch_signals()?;
    let opener = ClusterOpener::new(backend.cluster, pod, JOB);
    let mut session = Session::new(&opener);
    let files = backend.files()?;
    if copies {
        let put = async { Ok(files.before_step(&mut session).await?) };
        unless_interrupted::<_, HookError>(signals.as_mut(), put).await?;
    }
    let mut signals = Remembered::new(signals.as_mut());
    let ended = agent::run(&mut session, &new_id(), frame, &mut signals, backend.streams).await;
    let got = match copies {
        true => until_cancelled(signals.is_cancelled, files.after_step(&mut session)).await,
        false => Ok(()),
    };
    outcome(backend, ended, got)
}

/// Takes the files of a step; of one that was cancelled as long as the runner waits for us.
pub async fn until_cancelled<E>(
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
    Ok(ended.map_err(|_| KubernetesError::Cancelled { seconds })??)
}

/// Returns how a step ended whose files came back, or did not: then it did not succeed.
pub fn outcome(
    backend: &KubernetesBackend<'_>,
    end: Result<StepEnd, AgentError>,
    got: Result<(), HookError>,
) -> Result<Outcome, HookError> {
    let status = match end {
        Ok(end) => exit_status(end),
        // As a shell has it of a program that it cannot run.
        Err(error) => {
            return Ok(Outcome::Failed { code: error.code(), error: Box::new(error.into()) });
        }
    };
    match got {
        // Its own failure is what people want to hear of.
        Err(error) if !status.success() => {
            backend.context.log.warning(&chain(&error));
            Ok(Outcome::Ended(status))
        }
        got => got.map(|()| Outcome::Ended(status)),
    }
}

fn exit_status(end: StepEnd) -> ExitStatus {
    match end {
        StepEnd::Exited(code) => ExitStatus::from_raw(i32::from(code) << 8),
        StepEnd::Signalled(signal) => ExitStatus::from_raw(i32::from(signal)),
    }
}

/// Returns an id that no other step has, so that none is taken for it.
pub fn new_id() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_as_its_program_did() {
        assert_eq!(exit_status(StepEnd::Exited(7)).code(), Some(7));
        assert_eq!(exit_status(StepEnd::Exited(137)).code(), Some(137));
        assert_eq!(exit_status(StepEnd::Signalled(9)).signal(), Some(9));
    }
}
