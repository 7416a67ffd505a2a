//! A call of GARM: reads environment and standard input, prints one JSON value or nothing.
//!
//! GARM shows standard error to its users, as the fault of an instance.

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::process::ExitCode;

use garm_provider_runc::{
    Bootstrap, CallExit, ControllerInstances, EngineAccess, GarmCall, GarmCommand, GarmInstance,
    GarmProvider, INTERFACE_VERSIONS, InstanceList, MAX_DOCUMENT_BYTES, PlanError, ProviderError,
    ProviderSettings, ReadCallError, plan, schema,
};
use oci_hooks_cli::context::OutputError;
use oci_hooks_engine_cli::host::HostError;
use oci_hooks_engine_cli::rootless::{EnterOutcome, RootlessError};
use oci_hooks_engine_cli::settings_file::SettingsError;
use oci_hooks_files::error::chain;
use serde::Serialize;

use crate::backend::{InstanceBackend, RootlessInstances};
use crate::settings::GarmFileSettings;
use crate::{settings, supervise};

/// Length limit of an error message, which GARM stores in its database.
const MAX_MESSAGE_CHARS: usize = 4000;

/// Number of attempts to connect to a registry. GARM itself repeats a failed creation after some seconds.
const CONNECT_ATTEMPTS: u32 = 2;

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum RunCallError {
    #[error(transparent)]
    Call(#[from] ReadCallError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Rootless(#[from] RootlessError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl RunCallError {
    fn exit(&self) -> CallExit {
        match self {
            RunCallError::Provider(error) => error.exit(),
            _ => CallExit::Failed,
        }
    }
}

/// Runs the call in the environment and standard input of this process.
pub fn run_from_environment() -> ExitCode {
    let mut stdin = Vec::new();
    let mut input = io::stdin();
    // On a terminal there is no document.
    let read = match input.is_terminal() {
        true => Ok(0),
        // One byte more than the limit, so that a longer document is detected.
        false => input.by_ref().take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut stdin),
    };
    if let Err(error) = read {
        return end(Err(ReadCallError::Read(error).into()));
    }
    let variable = |name: &str| env::var(name).ok();
    let call = match GarmCall::read(variable, stdin.as_slice()) {
        Ok(call) => call,
        Err(error) => return end(Err(error.into())),
    };
    run_call(&call, variable).unwrap_or_else(|error| end(Err(error)))
}

/// Reports an error to GARM.
pub fn report_error(error: &(dyn Error + 'static)) -> ExitCode {
    say(error);
    CallExit::Failed.code().into()
}

fn end(result: Result<(), RunCallError>) -> ExitCode {
    let Err(error) = result else { return CallExit::Done.code().into() };
    say(&error);
    error.exit().code().into()
}

/// Writes an error to standard error, in one line.
fn say(error: &(dyn Error + 'static)) {
    let text = chain(error);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = words.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect();
    // Without standard error the error cannot be reported.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn run_call(
    call: &GarmCall,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ExitCode, RunCallError> {
    match &call.command {
        // As in GARM's library, the version is not JSON.
        GarmCommand::GetVersion => return Ok(end(write(concat!("v", env!("CARGO_PKG_VERSION"))))),
        GarmCommand::GetSupportedInterfaceVersions => return Ok(end(answer(&INTERFACE_VERSIONS))),
        GarmCommand::GetConfigJsonSchema => return Ok(end(write(schema::CONFIG.trim_end()))),
        GarmCommand::GetExtraSpecsJsonSchema => {
            return Ok(end(write(schema::EXTRA_SPECS.trim_end())));
        }
        _ => {}
    }
    let settings = settings::read(call.config_file.as_deref())?.settings;
    if let GarmCommand::ValidatePoolInfo(pool) = &call.command {
        return Ok(end(validate(&settings.provider_settings()?, pool)));
    }
    match InstanceBackend::of(settings) {
        InstanceBackend::Root(settings) => Ok(end(carry_out_with(call, &settings, variable))),
        InstanceBackend::User(instances) => carry_out_as_user(call, &instances, variable),
    }
}

/// Runs a call for rootless instances, in the namespaces of an instance if necessary.
fn carry_out_as_user(
    call: &GarmCall,
    instances: &RootlessInstances,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ExitCode, RunCallError> {
    let (controller, own) = (&call.controller_id, instances.of_controller(&call.controller_id));
    let name = match &call.command {
        GarmCommand::CreateInstance(bootstrap) => &bootstrap.name,
        GarmCommand::StopInstance { id } => {
            own.get(id)?;
            if !instances.has_pause_process(controller, id) {
                // All processes of the instance have exited.
                return Ok(CallExit::Done.code().into());
            }
            id
        }
        GarmCommand::StartInstance { id } => {
            own.get(id)?;
            id
        }
        command => return Ok(end(use_instances(command, &own))),
    };
    Ok(match instances.enter(controller, name)? {
        EnterOutcome::Inside(store) => {
            end(carry_out_with(call, &instances.settings().with_store(&store), variable))
        }
        EnterOutcome::Ended(exit) => exit.into(),
    })
}

fn carry_out_with(
    call: &GarmCall,
    settings: &GarmFileSettings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), RunCallError> {
    let garm = settings.provider_settings()?;
    let host = settings.host();
    let engine = match call.command {
        GarmCommand::CreateInstance(_) => host.engine()?,
        _ => host.into_existing_engine()?,
    };
    let registries = host.registries(|name| settings.proxy(name, variable(name)))?;
    let registries = registries.with_connect_attempts(CONNECT_ATTEMPTS);
    let provider = GarmProvider {
        controller: &call.controller_id,
        access: EngineAccess { engine: &engine, network: &settings.network() },
        registries: &registries,
        credentials: &host.credentials()?,
        settings: &garm,
        supervisor: &supervise::program(&engine).map_err(HostError::from)?,
    };
    let carried_out = ask(&call.command, &provider);
    for aside in engine.store.trash().take_set_aside() {
        say(&aside);
    }
    carried_out
}

fn ask(command: &GarmCommand, provider: &GarmProvider<'_>) -> Result<(), RunCallError> {
    match command {
        GarmCommand::CreateInstance(bootstrap) => answer(&provider.create(bootstrap)?),
        GarmCommand::StartInstance { id } => Ok(provider.start(id)?),
        GarmCommand::StopInstance { id } => Ok(provider.stop(id)?),
        command => use_instances(command, &provider.instances()),
    }
}

/// Runs an operation on existing instances.
fn use_instances(
    command: &GarmCommand,
    instances: &ControllerInstances<'_>,
) -> Result<(), RunCallError> {
    match command {
        GarmCommand::GetInstance { id } => answer(&instances.get(id)?),
        GarmCommand::ListInstances { pool_id } => list(&instances.list(pool_id)?),
        GarmCommand::DeleteInstance { id } => Ok(instances.delete(id)?),
        GarmCommand::RemoveAllInstances => Ok(instances.remove_all()?),
        _ => unreachable!("these need no provider, or more"),
    }
}

fn list(listed: &InstanceList) -> Result<(), RunCallError> {
    for error in &listed.unreadable {
        say(error);
    }
    answer::<Vec<GarmInstance>>(&listed.instances)
}

/// Checks that an instance of a pool can be planned with the settings of this host.
fn validate(garm: &ProviderSettings, pool: &Bootstrap) -> Result<(), RunCallError> {
    // Missing values are replaced by valid ones.
    let or = |value: &str, valid: &str| match value {
        "" => valid.to_owned(),
        value => value.to_owned(),
    };
    let flavor = garm.flavors.keys().next().map_or("", String::as_str);
    plan(
        garm,
        &Bootstrap {
            name: or(&pool.name, "pool"),
            image: or(&pool.image, "image"),
            flavor: or(&pool.flavor, flavor),
            ..pool.clone()
        },
    )?;
    Ok(())
}

fn answer<T: Serialize>(value: &T) -> Result<(), RunCallError> {
    write(&serde_json::to_string(value).map_err(io::Error::from).map_err(OutputError::from)?)
}

/// Writes the answer, the only output on standard output.
fn write(text: &str) -> Result<(), RunCallError> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n"));
    written.and_then(|()| stdout.flush()).map_err(|error| OutputError::from(error).into())
}
