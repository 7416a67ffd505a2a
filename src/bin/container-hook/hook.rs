//! `container-hook` without a command: a request of the runner, carried out.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use oci_hooks::container_hook::request::Request;
use oci_hooks::container_hook::{Hook, HookError, Outcome};
use oci_hooks::sys::error::chain;

use crate::engine::{self, EngineError};
use crate::environment::{self, EnvironmentError};
use crate::log::Log;
use crate::settings::{Loaded, SettingsError};
use crate::signals;
use crate::stdin::{self, StdinError};

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error("cannot execute {program}")]
    Execute { program: String, source: io::Error },
}

/// Carries out the request on standard input. What is to be said goes to the log of the step.
pub(crate) fn run(config: Option<&Path>) -> ExitCode {
    let log = Log::new(environment::wants_debug());
    match carry_out(config, &log) {
        Ok(status) => ExitCode::from(code(status)),
        Err(error) => {
            log.error(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn carry_out(config: Option<&Path>, log: &Log) -> Result<ExitStatus, Error> {
    let request = Request::parse(&stdin::read()?).map_err(HookError::from)?;
    let settings = Loaded::read(config)?.settings;
    let runner = environment::runner()?;
    let engine = engine::open(&settings)?;
    let hook = Hook {
        engine: &engine,
        network: &engine::network(&settings)?,
        registries: &engine::registries(&settings, runner.user.0)?,
        settings: &engine::hook_settings(&settings)?,
        runner: &runner,
        log,
    };
    match hook.run(&request, &signals::pass_on)? {
        Outcome::Done => Ok(ExitStatus::default()),
        Outcome::Ended(status) => Ok(status),
        Outcome::Become(mut program) => {
            let source = program.exec();
            let program = program.get_program().to_string_lossy().into_owned();
            Err(Error::Execute { program, source })
        }
    }
}

/// Returns the code of a process that ended, as a shell has it: 128 and the signal that ended it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
