//! `oci-hooks-runtime`: an OCI runtime that injects the hooks of hooks.d and executes the real runtime.
//!
//! Engines call it in place of runc. It has no options of its own, as all options belong to the
//! runtime; oci-hooks-runtime(1) describes its settings. For `--version` and `--help` it adds a message on
//! standard error.

mod inject;
mod restore;
mod settings;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use oci_hooks_cli::trace;
use oci_hooks_files::error::chain;
use oci_hooks_files::find::{self, FindError};
use oci_hooks_runtime::{ArgumentError, Invocation, LogFormat, RuntimeLog, RuntimeLogLevel};

use settings::{SettingsError, WrapperSettings};

/// An error before the runtime is executed.
#[derive(Debug, thiserror::Error)]
enum WrapperError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("cannot find an OCI runtime")]
    Find(#[from] FindError),
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    #[error("cannot tell which configuration the runtime opens: the working directory is unknown")]
    WorkingDirectory(#[source] std::io::Error),
    #[error(transparent)]
    Inject(#[from] inject::InjectError),
    #[error("cannot execute {runtime}")]
    Execute { runtime: String, source: std::io::Error },
}

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    trace::to_stderr(None);
    let invocation = Invocation::parse(&args);
    let log = RuntimeLog {
        path: invocation.log.clone(),
        format: invocation.log_format,
        debug: invocation.debug,
    };
    if let [argument] = args.as_slice()
        && let Some(about) = wrapper_message(argument)
    {
        let called = call(&args);
        // On standard error: engines read the runtime's version from standard output.
        report(&about);
        return called.unwrap_or_else(|error| fail(&error, &log));
    }
    // `run` returns only on an error: otherwise it executes the runtime in this process.
    let Err(error) = run(args, &invocation, &log);
    fail(&error, &log)
}

/// Returns the wrapper's own message for `--version` and `--help`; `None` for other arguments.
fn wrapper_message(argument: &OsStr) -> Option<String> {
    let version = concat!("oci-hooks-runtime ", env!("CARGO_PKG_VERSION"));
    match argument.to_str()? {
        "--version" => Some(version.to_owned()),
        "--help" => Some(format!(
            "\n{version} injects the hooks of hooks.d and then executes the runtime, whose help is above. It has no\n\
             options of its own; its settings are in /etc/oci-hooks/runtime.toml: see man oci-hooks-runtime."
        )),
        _ => None,
    }
}

/// Calls the runtime and waits for it.
fn call(args: &[OsString]) -> Result<ExitCode, WrapperError> {
    let settings = WrapperSettings::load(|name| env::var_os(name))?;
    let runtime = find_runtime(&settings)?;
    let execute = |source| WrapperError::Execute { runtime: runtime.display().to_string(), source };
    let status = Command::new(&runtime).args(args).status().map_err(execute)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Reports an error in the runtime's log and on standard error.
fn fail(error: &WrapperError, log: &RuntimeLog) -> ExitCode {
    let message = format!("oci-hooks: {}", chain(error));
    let is_for_people = log.path.is_none() && log.format == LogFormat::Text;
    if !is_for_people && let Err(error) = log.write(RuntimeLogLevel::Error, &message) {
        report(&format!("error: {}", chain(&error)));
    }
    // As runc does: the log is for the engine, standard error for interactive use.
    if is_for_people || log.path.is_some() {
        report(&format!("error: {message}"));
    }
    ExitCode::FAILURE
}

/// Injects hooks if the command creates a container, then executes the runtime.
fn run(
    mut args: Vec<OsString>,
    invocation: &Invocation,
    log: &RuntimeLog,
) -> Result<std::convert::Infallible, WrapperError> {
    let settings = WrapperSettings::load(|name| env::var_os(name))?;
    let runtime = find_runtime(&settings)?;
    if invocation.makes_container() {
        let working_directory = env::current_dir().map_err(WrapperError::WorkingDirectory)?;
        if let Some(call) = invocation.container_call(&working_directory)? {
            let restored_by = invocation.restores().then_some(runtime.as_path());
            inject::inject(&inject::InjectionTarget { call: &call, restored_by }, &settings, log)?;
            args = call.args;
        }
    }
    let source = Command::new(&runtime).args(args).exec();
    Err(WrapperError::Execute { runtime: runtime.display().to_string(), source })
}

fn find_runtime(settings: &WrapperSettings) -> Result<std::path::PathBuf, FindError> {
    let path = env::var_os("PATH");
    let this = env::current_exe().ok();
    let names = match &settings.runtime {
        Some(name) => vec![name.as_os_str()],
        None => oci_hooks_runtime::KNOWN.map(OsStr::new).to_vec(),
    };
    find::find(&names, path.as_deref(), this.as_deref())
}

fn report(message: &str) {
    use std::io::Write;

    // A closed standard error is not an error.
    let _ = writeln!(std::io::stderr(), "{message}");
}
