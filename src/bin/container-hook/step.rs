//! A step that the job container's own first process starts: it needs neither a runtime nor
//! settings.

use std::os::fd::AsFd as _;

use oci_hooks::container::StepError;
use oci_hooks::container_hook::engine::DirectStep;
use oci_hooks::container_hook::request::Request;
use oci_hooks::container_hook::{HookError, Log as _};
use oci_hooks::program::exit::Exit;
use oci_hooks::sys::error::chain;

use crate::environment;
use crate::log::Log;
use crate::signals::Pending;

/// Carries a request out, if it is such a step; returns nothing if it has to be carried out in another
/// way, and then nothing of it was done.
pub fn run(request: &Request, log: &Log) -> Result<Option<Exit>, Box<HookError>> {
    let step = DirectStep::of(request, environment::owner, environment::temp)?;
    let Some(step) = step else { return Ok(None) };
    if let Err(error) = step.lend_files() {
        log.warning(&chain(&error));
    }
    // Without them the step would be left alone with what they are about.
    let Ok(mut signals) = Pending::new() else { return Ok(None) };
    let denial = step.denial();
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    match step.run(&mut signals, [stdout.as_fd(), stderr.as_fd()]) {
        Ok(end) => {
            let failed = end.code() != 0;
            let denial = denial.filter(|_| failed).zip(environment::temp());
            if let Some(line) = denial.and_then(|(denial, temp)| denial.explain(&temp)) {
                log.line(&line);
            }
            Ok(Some(Exit::Code(end.code())))
        }
        Err(error) if error.is_unavailable() => {
            log.debug(&format!(
                "the container's first process cannot be asked for the step: {}",
                chain(&error)
            ));
            Ok(None)
        }
        Err(error) => Ok(Some(failed(&error, log))),
    }
}

fn failed(error: &StepError, log: &Log) -> Exit {
    log.error(&chain(error));
    Exit::Code(error.code())
}
