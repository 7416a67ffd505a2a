//! Last step of a boot: runs the runner, reports to GARM that the runner listens for jobs, and returns its failure.

use std::sync::mpsc;
use std::thread;

use oci_hooks_files::error::chain;

use super::error::BootError;
use super::guest::{Guest, GuestError};
use super::mask::SecretMask;
use super::output::RunnerOutputWatcher;
use super::sequence::ReadyRunner;
use super::spec::BootSpec;
use super::status::GarmApi;

/// Runs a runner until it exits.
pub fn run_runner<G: Guest>(
    garm: &GarmApi<'_>,
    spec: &BootSpec,
    guest: &mut G,
    ready: &ReadyRunner,
) -> Result<(), BootError> {
    let forge = spec.runner.as_ref().map(|runner| runner.forge);
    let (send, receive) = mpsc::channel();
    let mut output = RunnerOutputWatcher::new(forge, garm.deadline(), send);
    // Reported on a separate thread, so that reading the runner's output does not wait for a slow GARM.
    let (result, refusal) = thread::scope(|scope| {
        let telling = scope.spawn(move || garm.idle(ready.agent_id, &receive));
        let result = guest.run_watched(&ready.command, &mut output);
        output.close();
        (result, telling.join().expect("telling GARM does not panic"))
    });
    if let Some(error) = refusal {
        // Not a failure: GARM may already know of the job from the forge, or has given up the instance and deletes it.
        guest.note(&format!("cannot report to GARM that the runner is idle: {}", chain(&error)));
    }
    let last = output.last_lines(&SecretMask::new(spec));
    let code = match result {
        Ok(code) => code,
        Err(GuestError::TimedOut { .. }) => {
            return Err(BootError::NotListening { timeout: spec.timeout, last });
        }
        Err(error) => return Err(error.into()),
    };
    match (forge, output.listener_failure()) {
        (None, _) if code != 0 => Err(BootError::InstallScript { code, last }),
        // If the script has reported the runner as idle, GARM rejects the report of this failure.
        (None, _) => {
            let error = BootError::NeverIdle { last };
            if garm.report_failed(&error).is_ok() { Err(error) } else { Ok(()) }
        }
        (Some(_), _) if !output.has_listened() => Err(BootError::EndedEarly { code, last }),
        (Some(_), Some(reason)) => Err(BootError::Listener { reason: reason.to_owned(), last }),
        (Some(_), None) if code != 0 => Err(BootError::Ended { code, last }),
        (Some(_), None) => Ok(()),
    }
}
