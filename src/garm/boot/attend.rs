//! The last step: the runner runs, GARM learns that it waits for its job, and how it ended if that
//! is not as it should be.

use std::sync::mpsc;
use std::thread;

use super::error::BootError;
use super::guest::{Guest, GuestError};
use super::mask::Mask;
use super::output::RunnerOutput;
use super::sequence::Ready;
use super::spec::BootSpec;
use super::status::Garm;
use crate::sys::error::chain;

/// Runs a runner to its end.
pub fn attend<G: Guest>(
    garm: &Garm<'_>,
    spec: &BootSpec,
    guest: &mut G,
    ready: &Ready,
) -> Result<(), BootError> {
    let forge = spec.runner.as_ref().map(|runner| runner.forge);
    let (send, receive) = mpsc::channel();
    let mut output = RunnerOutput::new(forge, garm.deadline(), send);
    // Beside the runner: GARM may be slow to answer, and nobody must wait for that to read on.
    let (result, refusal) = thread::scope(|scope| {
        let telling = scope.spawn(move || garm.idle(ready.agent_id, &receive));
        let result = guest.run_watched(&ready.command, &mut output);
        output.close();
        (result, telling.join().expect("telling GARM does not panic"))
    });
    if let Some(error) = refusal {
        // It may know of the job already. What it has given up it deletes.
        guest.note(&format!("GARM was not told that the runner is idle: {}", chain(&error)));
    }
    let last = output.last_lines(&Mask::new(spec));
    let code = match result {
        Ok(code) => code,
        Err(GuestError::TimedOut { .. }) => {
            return Err(BootError::NotListening { timeout: spec.timeout, last });
        }
        Err(error) => return Err(error.into()),
    };
    match (forge, output.complaint()) {
        (None, _) if code != 0 => Err(BootError::InstallScript { code, last }),
        // If the runner came up, its script has told so, and GARM does not take this.
        (None, _) => {
            let error = BootError::NeverIdle { last };
            if garm.failed(&error).is_ok() { Err(error) } else { Ok(()) }
        }
        (Some(_), _) if !output.has_listened() => Err(BootError::EndedEarly { code, last }),
        (Some(_), Some(reason)) => Err(BootError::Listener { reason: reason.to_owned(), last }),
        (Some(_), None) if code != 0 => Err(BootError::Ended { code, last }),
        (Some(_), None) => Ok(()),
    }
}
