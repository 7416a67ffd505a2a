//! `container-hook` without a command: carries out a request of the runner.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use container_hook::{EngineBackend, JobRootFs};
use container_hook_job::audit::AuditLog;
use container_hook_job::request::{HookCommand, HookRequest};
use container_hook_job::runner::CallingRunner;
use container_hook_job::{HookBackend, HookContext, HookError, HookLog as _, RequestOutcome};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::rootless::{self, EnterOutcome};
use oci_hooks_engine_cli::sections::RuntimeSection;
use oci_hooks_engine_cli::settings_file::{FileSettings as _, LoadedSettings};
use oci_hooks_files::error::chain;

use crate::environment::{self, WorkerInfo};
use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::jobs;
use crate::log::StepLog;
use crate::settings::HookFileSettings;
use crate::signals;
use crate::stdin;
use crate::step;
use crate::{docker, engine};

/// Carries out the request on standard input.
pub fn run(
    config: Option<&Path>,
    job_system: JobRootFs,
    log: &StepLog,
) -> Result<CliExit, HookCommandError> {
    let request = HookRequest::parse(&stdin::read()?)?;
    if let Some(exit) = step::run(&request, log)? {
        return Ok(exit);
    }
    let mut loaded = HookFileSettings::load(config)?;
    let seen = environment::find_worker();
    match JobBackend::of(&loaded.settings)? {
        JobBackend::Root | JobBackend::User => {
            let entered =
                jobs::enter(&loaded.settings, &request, &seen).map_err(HookCommandError::from);
            match entered.inspect_err(|error| explain(error, log))? {
                EnterOutcome::Inside(store) => {
                    loaded.settings.store = *store;
                    run_on_this_machine(&loaded, job_system, &request, &seen, log)
                        .inspect_err(|error| explain(error, log))
                }
                EnterOutcome::Ended(exit) => Ok(exit),
            }
        }
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => crate::kubernetes::run(&loaded, &request, &seen, log),
    }
}

/// Logs which privilege this process lacks in its container or service, if an operation was denied
/// to a rootless user.
fn explain(error: &HookCommandError, log: &StepLog) {
    if let Some(missing) = rootless::missing_requirement(error, error.namespace_error()) {
        log.warning(&missing);
    }
}

fn run_on_this_machine(
    loaded: &LoadedSettings<HookFileSettings>,
    job_system: JobRootFs,
    request: &HookRequest,
    seen: &WorkerInfo,
    log: &StepLog,
) -> Result<CliExit, HookCommandError> {
    let mut call = HookCall::new(loaded, request, seen)?;
    let settings = &with_runtime_of_repository(&loaded.settings, &call.runner);
    let engine = match makes_containers(request) {
        true => settings.host().engine()?,
        false => settings.host().into_existing_engine()?,
    };
    if makes_containers(request) {
        engine::check(settings)?;
        call.runner.defaults = docker::defaults(&settings.policy)?;
        // In a job with containers, `prepare_job` has already reported these variables.
        if request.state.is_none() {
            docker::report(&settings.policy, log);
        }
    }
    let mut of_engine = engine::engine_settings(settings, job_system)?;
    let of_build = &mut of_engine.build_env;
    let is_set = |name: &str| of_build.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    let unset = call.runner.defaults.env.iter().filter(|(name, _)| !is_set(name));
    let unset: Vec<_> = unset.cloned().collect();
    of_build.extend(unset);
    let backend = EngineBackend {
        context: call.context(log),
        settings: &of_engine,
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

/// Returns the settings with the runtime that the policy names for the job's repository.
fn with_runtime_of_repository(
    settings: &HookFileSettings,
    runner: &CallingRunner,
) -> HookFileSettings {
    let program = settings.policy.runtime(runner.repository().unwrap_or_default());
    let path = program.map(PathBuf::from).or_else(|| settings.runtime.path.clone());
    let runtime = RuntimeSection { path, ..settings.runtime.clone() };
    HookFileSettings { runtime, ..settings.clone() }
}

/// A call of the hook by the runner, independent of the backend.
pub struct HookCall {
    settings: container_hook_job::HookSettings,
    runner: CallingRunner,
    audit: AuditLog,
}

impl HookCall {
    /// Reads the environment, and opens the audit log if the request creates containers.
    pub fn new(
        loaded: &LoadedSettings<HookFileSettings>,
        request: &HookRequest,
        seen: &WorkerInfo,
    ) -> Result<Self, HookCommandError> {
        let settings = &loaded.settings;
        let runner = environment::runner(settings, seen)?;
        let mut hook_settings = engine::hook_settings(settings, loaded.file_of("policy"));
        // Cleanup must work with an invalid template and on a full disk.
        let makes_containers = makes_containers(request);
        hook_settings.template.file = match makes_containers {
            true => environment::template(hook_settings.template.file)?,
            false => None,
        };
        let audit = settings.audit.file.as_deref().filter(|_| makes_containers);
        let audit = AuditLog::open(audit).map_err(|error| Box::new(HookError::from(error)))?;
        Ok(HookCall { settings: hook_settings, runner, audit })
    }

    pub fn context<'a>(&'a self, log: &'a StepLog) -> HookContext<'a> {
        HookContext { settings: &self.settings, runner: &self.runner, audit: &self.audit, log }
    }

    /// Carries out the request, and returns the exit status of its step.
    pub fn run(
        &self,
        backend: &dyn HookBackend,
        request: &HookRequest,
        log: &StepLog,
    ) -> Result<CliExit, HookCommandError> {
        let outcome = self.context(log).run(backend, request, &signals::pass_on);
        match outcome.map_err(Box::new)? {
            RequestOutcome::Done => Ok(CliExit::Done),
            RequestOutcome::Ended(status) => Ok(status.into()),
            RequestOutcome::Failed { code, error } => {
                log.error(&chain(&*error));
                Ok(CliExit::Code(code))
            }
            RequestOutcome::Become(mut program) => {
                let source = program.exec();
                let program = program.get_program().to_string_lossy().into_owned();
                Err(HookCommandError::Execute { program, source })
            }
        }
    }
}

fn makes_containers(request: &HookRequest) -> bool {
    matches!(request.command, HookCommand::PrepareJob(_) | HookCommand::RunContainerStep(_))
}
