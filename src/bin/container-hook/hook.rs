//! `container-hook` without a command: a request of the runner, carried out.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use oci_hooks::container_hook::audit::AuditLog;
use oci_hooks::container_hook::engine::EngineBackend;
use oci_hooks::container_hook::request::{Command, Request};
use oci_hooks::container_hook::{HookContext, HookError, Log as _, Outcome};
use oci_hooks::image::PlatformError;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::host::HostError;
use oci_hooks::program::relayed::sudo_caller;
use oci_hooks::program::settings_file::{FileSettings as _, Loaded, SettingsError};
use oci_hooks::sys::error::chain;

use crate::docker;
use crate::engine;
use crate::environment::{self, EnvironmentError};
use crate::log::Log;
use crate::settings::Settings;
use crate::signals;
use crate::stdin::{self, StdinError};
use crate::step;

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("DOCKER_DEFAULT_PLATFORM")]
    Platform(#[from] PlatformError),
    #[error(transparent)]
    Engine(#[from] HostError),
    #[error(transparent)]
    Hook(#[from] Box<HookError>),
    #[error("cannot execute {program}")]
    Execute { program: String, source: io::Error },
}

/// Carries out the request on standard input.
pub(crate) fn run(config: Option<&Path>, log: &Log) -> Result<Exit, CallError> {
    let request = Request::parse(&stdin::read()?).map_err(|error| Box::new(error.into()))?;
    // A runner that called by sudo has tried it already, with no more than its own rights.
    if sudo_caller().is_none()
        && let Some(exit) = step::run(&request, log)?
    {
        return Ok(exit);
    }
    let Loaded { settings, path, .. } = Settings::load(config)?;
    let mut runner = environment::runner(&settings)?;
    let engine = settings.host().engine()?;
    let mut hook_settings = engine::hook_settings(&settings, path.as_deref());
    // Neither a template that went bad nor a full disk is a reason to leave a job as it is.
    let makes_containers =
        matches!(request.command, Command::PrepareJob(_) | Command::RunContainerStep(_));
    if makes_containers {
        runner.defaults = docker::defaults(&settings.policy)?;
        // Of a job with containers `prepare_job` has told it.
        if request.state.is_none() {
            docker::report(&settings.policy, log);
        }
    }
    hook_settings.template.file = match makes_containers {
        true => environment::template(hook_settings.template.file)?,
        false => None,
    };
    let audit = settings.audit.file.as_deref().filter(|_| makes_containers);
    let audit = AuditLog::open(audit).map_err(|error| Box::new(error.into()))?;
    let context = HookContext { settings: &hook_settings, runner: &runner, audit: &audit, log };
    let backend = EngineBackend {
        context,
        settings: &engine::engine_settings(&settings)?,
        engine: &engine,
        network: &engine::network(&settings),
        registries: &settings.host().registries(|name| std::env::var(name).ok())?,
        credentials: &settings.host().credentials()?,
    };
    let outcome = context.run(&backend, &request, &signals::pass_on).map_err(Box::new);
    for aside in engine.store.trash().take_set_aside() {
        log.warning(&chain(&aside));
    }
    match outcome? {
        Outcome::Done => Ok(Exit::Done),
        Outcome::Ended(status) => Ok(status.into()),
        Outcome::Become(mut program) => {
            let source = program.exec();
            let program = program.get_program().to_string_lossy().into_owned();
            Err(CallError::Execute { program, source })
        }
    }
}
