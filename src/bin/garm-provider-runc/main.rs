//! `garm-provider-runc`: GARM runs its runners as OCI containers. See `garm-provider-runc --help`.

mod call;
mod cli;
mod doctor;
mod error;
mod instances;
mod logs;
#[cfg(test)]
mod man;
#[cfg(test)]
#[path = "../pages.rs"]
mod pages;
mod prune;
mod pull;
mod relay;
mod settings;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../oci-hooks/style.rs"]
mod style;
mod supervise;

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use oci_hooks::garm::COMMAND_VARIABLE;
use oci_hooks::sys::spawn;

use cli::{Cli, Command};
use context::Context;
use error::Error;
use shared::{completions, config, context, monitor, progress, table};

/// How a command for people ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// It was done, and all is well.
    Done,
    /// Something is not as it should be.
    Findings,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => ExitCode::SUCCESS,
            Exit::Findings => ExitCode::FAILURE,
        }
    }
}

fn main() -> ExitCode {
    // GARM waits for everyone who has its pipes; what it starts us with besides is for nobody.
    let kept = spawn::keep_descriptors();
    // GARM passes no arguments, and people no command of GARM's.
    if env::args_os().len() == 1 && env::var_os(COMMAND_VARIABLE).is_some() {
        return match kept {
            Ok(()) => call::of_environment(),
            Err(error) => call::refused(&error),
        };
    }
    let cli = Cli::parse();
    let command = match &cli.command {
        Some(Command::AsRoot(_)) => return relay::as_root(cli.global.config.as_deref()),
        None => {
            // If standard output is gone there is nobody to tell.
            let _ = Cli::command().print_help();
            return ExitCode::FAILURE;
        }
        Some(command) => command,
    };
    let mut context = Context::new(&cli.global);
    let result = run(command, &mut context);
    let result = result.and_then(|exit| context.flush().map(|()| exit));
    match result {
        Ok(exit) => exit.into(),
        // Whoever read the output has what they wanted.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            context.show_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, context: &mut Context) -> Result<Exit, Error> {
    match command {
        Command::Instances(args) => instances::run(args, context),
        Command::Logs(args) => logs::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Pull(args) => pull::run(args, context),
        Command::Prune(args) => prune::run(args, context),
        Command::Config(args) => config::run(args, context),
        Command::Completions(args) => completions::run(args, context),
        Command::Supervise(args) => supervise::run(args, context),
        Command::Monitor(args) => monitor::run(args),
        Command::AsRoot(_) => unreachable!("it speaks to GARM"),
    }
}
