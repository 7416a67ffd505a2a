//! `container-hook` without a command: a request of the runner, carried out.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use oci_hooks::container_hook;
use oci_hooks::container_hook::audit::AuditLog;
use oci_hooks::container_hook::engine::{EngineBackend, JobSystem};
use oci_hooks::container_hook::request::{Command, Request};
use oci_hooks::container_hook::{Backend, HookContext, HookError, Log as _, Outcome, Runner};
use oci_hooks::image::PlatformError;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::host::HostError;
use oci_hooks::program::rootless::{self, Entered, RootlessError};
use oci_hooks::program::settings_file::{FileSettings as _, Loaded, SettingsError};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::PathError;

use crate::docker;
use crate::engine;
use crate::environment::{self, EnvironmentError, Seen};
use crate::job_backend::{JobBackend, NoKubernetes};
use crate::jobs;
use crate::log::Log;
use crate::settings::Settings;
use crate::signals;
use crate::stdin::{self, StdinError};
use crate::step;

/// A request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("DOCKER_DEFAULT_PLATFORM")]
    Platform(#[from] PlatformError),
    #[error(transparent)]
    Rootless(#[from] RootlessError),
    #[error(transparent)]
    Engine(#[from] HostError),
    #[error(transparent)]
    Hook(#[from] Box<HookError>),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    NoKubernetes(#[from] NoKubernetes),
    #[error("cannot execute {program}")]
    Execute { program: String, source: io::Error },
}

/// Carries out the request on standard input.
pub fn run(config: Option<&Path>, job_system: JobSystem, log: &Log) -> Result<Exit, CallError> {
    let request = Request::parse(&stdin::read()?).map_err(|error| Box::new(error.into()))?;
    if let Some(exit) = step::run(&request, log)? {
        return Ok(exit);
    }
    let mut loaded = Settings::load(config)?;
    let seen = environment::seen();
    match JobBackend::of(&loaded.settings)? {
        JobBackend::Root | JobBackend::User => {
            let entered = jobs::enter(&loaded.settings, &request, &seen).map_err(CallError::from);
            match entered.inspect_err(|error| explain(error, log))? {
                Entered::Inside(store) => {
                    loaded.settings.store = *store;
                    on_this_machine(&loaded, job_system, &request, &seen, log)
                        .inspect_err(|error| explain(error, log))
                }
                Entered::Ended(exit) => Ok(exit),
            }
        }
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => crate::kubernetes::run(&loaded, &request, &seen, log),
    }
}

/// Reports what the container lacks that this runs in, if something was denied to an ordinary user.
fn explain(error: &CallError, log: &Log) {
    if let Some(missing) = rootless::lacking(error) {
        log.warning(&missing);
    }
}

fn on_this_machine(
    loaded: &Loaded<Settings>,
    job_system: JobSystem,
    request: &Request,
    seen: &Seen,
    log: &Log,
) -> Result<Exit, CallError> {
    let settings = &loaded.settings;
    let mut call = Call::new(loaded, request, seen)?;
    let engine = settings.host().engine()?;
    if makes_containers(request) {
        engine::check(settings)?;
        call.runner.defaults = docker::defaults(&settings.policy)?;
        // For a job with containers, `prepare_job` has reported it.
        if request.state.is_none() {
            docker::report(&settings.policy, log);
        }
    }
    let backend = EngineBackend {
        context: call.context(log),
        settings: &engine::engine_settings(settings, job_system)?,
        engine: &engine,
        network: &engine::network(settings),
        registries: &settings.host().registries(|name| std::env::var(name).ok())?,
        credentials: &settings.host().credentials()?,
    };
    let ended = call.run(&backend, request, log);
    for aside in engine.store.trash().take_set_aside() {
        log.warning(&chain(&aside));
    }
    ended
}

/// A call of the runner, for every backend.
pub struct Call {
    settings: container_hook::Settings,
    runner: Runner,
    audit: AuditLog,
}

impl Call {
    /// Looks at the environment, and opens the audit log if containers are to be made.
    pub fn new(
        loaded: &Loaded<Settings>,
        request: &Request,
        seen: &Seen,
    ) -> Result<Self, CallError> {
        let settings = &loaded.settings;
        let runner = environment::runner(settings, seen)?;
        let mut hook_settings = engine::hook_settings(settings, loaded.file_of("policy"));
        // Cleanup works with a broken template and on a full disk.
        let makes_containers = makes_containers(request);
        hook_settings.template.file = match makes_containers {
            true => environment::template(hook_settings.template.file)?,
            false => None,
        };
        let audit = settings.audit.file.as_deref().filter(|_| makes_containers);
        let audit = AuditLog::open(audit).map_err(|error| Box::new(error.into()))?;
        Ok(Call { settings: hook_settings, runner, audit })
    }

    pub fn context<'a>(&'a self, log: &'a Log) -> HookContext<'a> {
        HookContext { settings: &self.settings, runner: &self.runner, audit: &self.audit, log }
    }

    /// Carries out the request, and returns the exit of its step.
    pub fn run(
        &self,
        backend: &dyn Backend,
        request: &Request,
        log: &Log,
    ) -> Result<Exit, CallError> {
        let outcome = self.context(log).run(backend, request, &signals::pass_on);
        match outcome.map_err(Box::new)? {
            Outcome::Done => Ok(Exit::Done),
            Outcome::Ended(status) => Ok(status.into()),
            Outcome::Failed { code, error } => {
                log.error(&chain(&*error));
                Ok(Exit::Code(code))
            }
            Outcome::Become(mut program) => {
                let source = program.exec();
                let program = program.get_program().to_string_lossy().into_owned();
                Err(CallError::Execute { program, source })
            }
        }
    }
}

fn makes_containers(request: &Request) -> bool {
    matches!(request.command, Command::PrepareJob(_) | Command::RunContainerStep(_))
}
