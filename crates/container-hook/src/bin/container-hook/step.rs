//! Runs steps through the init process of the job container, without a runtime or settings.

use std::os::fd::AsFd as _;

use container_hook::DirectStep;
use container_hook_job::request::HookRequest;
use container_hook_job::{HookError, HookLog as _};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::StepError;
use oci_hooks_files::error::chain;

use crate::environment;
use crate::log::StepLog;
use crate::signals::PendingSignals;

/// Runs the step of a request through the init process. Returns `None` if the request has no step that the init
/// process takes, or if the step could not be started.
pub fn run(request: &HookRequest, log: &StepLog) -> Result<Option<CliExit>, Box<HookError>> {
    let step = DirectStep::of(request, environment::owner, environment::temp)?;
    let Some(step) = step else { return Ok(None) };
    if let Err(error) = step.share_files() {
        log.warning(&chain(&error));
    }
    // Without signals the step could not be cancelled.
    let Ok(mut signals) = PendingSignals::new() else { return Ok(None) };
    let denial = step.denial();
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    match step.run(&mut signals, [stdout.as_fd(), stderr.as_fd()]) {
        Ok(end) => {
            let failed = end.code() != 0;
            let denial = denial.filter(|_| failed).zip(environment::temp());
            if let Some(line) = denial.and_then(|(denial, temp)| denial.explain(&temp)) {
                log.line(&line);
            }
            Ok(Some(CliExit::Code(end.code())))
        }
        Err(error) if error.is_unavailable() => {
            log.debug(&format!(
                "the init process of the container cannot run the step, so the runtime does: {}",
                chain(&error)
            ));
            Ok(None)
        }
        Err(error) => Ok(Some(report_failure(&error, log))),
    }
}

fn report_failure(error: &StepError, log: &StepLog) -> CliExit {
    log.error(&chain(error));
    CliExit::Code(error.code())
}
