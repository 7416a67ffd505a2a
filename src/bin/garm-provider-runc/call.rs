//! A call of GARM: variables and standard input in, one JSON value or nothing out.
//!
//! GARM shows what is written to standard error to its users, as the fault of an instance.

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::process::ExitCode;

use oci_hooks::garm::{
    Bootstrap, Call, CallError, Command, Exit, INTERFACE_VERSIONS, Instance, Listed, Lookup,
    MAX_DOCUMENT_BYTES, PlanError, Provider, ProviderError, plan, schema,
};
use oci_hooks::image::Silent;
use oci_hooks::program::context::OutputError;
use oci_hooks::program::host::HostError;
use oci_hooks::program::rootless::{Entered, RootlessError};
use oci_hooks::program::settings_file::SettingsError;
use oci_hooks::sys::error::chain;
use serde::Serialize;

use crate::backend::{Backend, RootlessInstances};
use crate::settings::Settings;
use crate::{settings, supervise};

/// The longest message: GARM stores it in its database.
const MAX_MESSAGE_CHARS: usize = 4000;

/// A call was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Call(#[from] CallError),
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

impl Failure {
    fn exit(&self) -> Exit {
        match self {
            Failure::Provider(error) => error.exit(),
            _ => Exit::Failed,
        }
    }
}

/// Carries out the call that the environment and standard input of this process are.
pub fn of_environment() -> ExitCode {
    let mut stdin = Vec::new();
    let mut input = io::stdin();
    // On a terminal there is no document.
    let read = match input.is_terminal() {
        true => Ok(0),
        // One byte more than the limit, so that a longer document is detected.
        false => input.by_ref().take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut stdin),
    };
    if let Err(error) = read {
        return end(Err(CallError::Read(error).into()));
    }
    let variable = |name: &str| env::var(name).ok();
    let call = match Call::read(variable, stdin.as_slice()) {
        Ok(call) => call,
        Err(error) => return end(Err(error.into())),
    };
    carry_out(&call, variable).unwrap_or_else(|error| end(Err(error)))
}

/// Reports to GARM that nothing could be done.
pub fn refused(error: &(dyn Error + 'static)) -> ExitCode {
    say(error);
    Exit::Failed.code().into()
}

fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(error) = result else { return Exit::Done.code().into() };
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

fn carry_out(call: &Call, variable: impl Fn(&str) -> Option<String>) -> Result<ExitCode, Failure> {
    match &call.command {
        // As in GARM's own library, a version is not JSON.
        Command::GetVersion => return Ok(end(write(concat!("v", env!("CARGO_PKG_VERSION"))))),
        Command::GetSupportedInterfaceVersions => return Ok(end(answer(&INTERFACE_VERSIONS))),
        Command::GetConfigJsonSchema => return Ok(end(write(schema::CONFIG.trim_end()))),
        Command::GetExtraSpecsJsonSchema => return Ok(end(write(schema::EXTRA_SPECS.trim_end()))),
        _ => {}
    }
    let settings = settings::read(call.config_file.as_deref())?.settings;
    if let Command::ValidatePoolInfo { image, flavor, extra_specs } = &call.command {
        return Ok(end(validate(&settings.garm()?, image, flavor, extra_specs.clone())));
    }
    match Backend::of(settings) {
        Backend::Root(settings) => Ok(end(carry_out_with(call, &settings, variable))),
        Backend::User(instances) => carry_out_as_user(call, &instances, variable),
    }
}

/// Carries out a call about instances of an ordinary user, in the namespaces of one where that is needed.
fn carry_out_as_user(
    call: &Call,
    instances: &RootlessInstances,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ExitCode, Failure> {
    let (controller, lookup) = (&call.controller_id, instances.lookup(&call.controller_id));
    let name = match &call.command {
        Command::CreateInstance(bootstrap) => &bootstrap.name,
        Command::StopInstance { id } => {
            lookup.get(id)?;
            if !instances.has_holder(controller, id) {
                // All its processes have ended.
                return Ok(Exit::Done.code().into());
            }
            id
        }
        Command::StartInstance { id } => {
            lookup.get(id)?;
            id
        }
        command => return Ok(end(look(command, &lookup))),
    };
    Ok(match instances.enter(controller, name)? {
        Entered::Inside(store) => {
            end(carry_out_with(call, &instances.settings().with_store(&store), variable))
        }
        Entered::Ended(exit) => exit.into(),
    })
}

fn carry_out_with(
    call: &Call,
    settings: &Settings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), Failure> {
    let garm = settings.garm()?;
    let host = settings.host();
    let engine = match call.command {
        Command::CreateInstance(_) => host.engine()?,
        _ => host.existing()?,
    };
    let provider = Provider {
        controller: &call.controller_id,
        engine: &engine,
        network: &settings.network(),
        registries: &host.registries(|name| settings.proxy(name, variable(name)))?,
        credentials: &host.credentials()?,
        settings: &garm,
        supervisor: &supervise::program(&engine).map_err(HostError::from)?,
        progress: &Silent,
    };
    let carried_out = ask(&call.command, &provider);
    for aside in engine.store.trash().take_set_aside() {
        say(&aside);
    }
    carried_out
}

fn ask(command: &Command, provider: &Provider<'_>) -> Result<(), Failure> {
    match command {
        Command::CreateInstance(bootstrap) => answer(&provider.create(bootstrap)?),
        Command::StartInstance { id } => Ok(provider.start(id)?),
        Command::StopInstance { id } => Ok(provider.stop(id)?),
        command => look(command, &provider.lookup()),
    }
}

/// Carries out what needs no more of an instance than to find it.
fn look(command: &Command, lookup: &Lookup<'_>) -> Result<(), Failure> {
    match command {
        Command::GetInstance { id } => answer(&lookup.get(id)?),
        Command::ListInstances { pool_id } => list(&lookup.list(pool_id)?),
        Command::DeleteInstance { id } => Ok(lookup.delete(id)?),
        Command::RemoveAllInstances => Ok(lookup.remove_all()?),
        _ => unreachable!("these need no provider, or more"),
    }
}

fn list(listed: &Listed) -> Result<(), Failure> {
    for error in &listed.unreadable {
        say(error);
    }
    answer::<Vec<Instance>>(&listed.instances)
}

/// Plans an instance of a pool, as far as it is known.
fn validate(
    garm: &oci_hooks::garm::Settings,
    image: &str,
    flavor: &str,
    extra_specs: serde_json::Value,
) -> Result<(), Failure> {
    let document = serde_json::json!({
        "name": "pool",
        // Any will do for what is not said.
        "image": if image.is_empty() { "image" } else { image },
        "flavor": if flavor.is_empty() { garm.flavors.keys().next().map_or("", String::as_str) } else { flavor },
        "extra_specs": extra_specs,
    });
    let bootstrap = Bootstrap::parse(document.to_string().as_bytes()).map_err(CallError::from)?;
    plan(garm, &bootstrap)?;
    Ok(())
}

fn answer<T: Serialize>(value: &T) -> Result<(), Failure> {
    write(&serde_json::to_string(value).map_err(io::Error::from).map_err(OutputError::from)?)
}

/// Writes all that is ever written to standard output.
fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n"));
    written.and_then(|()| stdout.flush()).map_err(|error| OutputError::from(error).into())
}
