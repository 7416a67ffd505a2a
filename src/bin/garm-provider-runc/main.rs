//! `garm-provider-runc`: GARM runs its runners as OCI containers. See `garm-provider-runc --help`.

mod backend;
mod call;
mod cli;
mod doctor;
mod error;
mod instances;
mod logs;
mod man;
mod prune;
mod pull;
mod rm;
mod settings;
mod supervise;

use std::env;
use std::process::ExitCode;

use clap::CommandFactory as _;
use cli::{Cli, Command};
use error::Error;
use oci_hooks::garm::COMMAND_VARIABLE;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::{Exit, exit_code};
use oci_hooks::program::{completions, config, help, monitor, trace};
use oci_hooks::sys::{spawn, users};
use settings::Settings;

fn main() -> ExitCode {
    completions::complete(Cli::command);
    users::use_files_and_dns();
    // GARM waits until its pipes are closed; no child needs the descriptors that this process inherits.
    let kept = spawn::keep_descriptors();
    // GARM passes a variable and no arguments.
    if env::args_os().len() == 1 && env::var_os(COMMAND_VARIABLE).is_some() {
        trace::with_warnings_to_stderr(None);
        return match kept {
            Ok(()) => call::of_environment(),
            Err(error) => call::refused(&error),
        };
    }
    let cli: Cli = help::parse();
    let command = match &cli.command {
        None => {
            // Without standard output the error cannot be reported.
            let _ = help::command::<Cli>().print_help();
            return ExitCode::FAILURE;
        }
        Some(command) => command,
    };
    trace::with_warnings_to_stderr(cli.global.log_level);
    let mut context = cli.global.context();
    let result = run(command, &mut context);
    let result = result.and_then(|exit| Ok(context.flush().map(|()| exit)?));
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::FAILURE
    })
}

fn run(command: &Command, context: &mut Context) -> Result<Exit, Error> {
    match command {
        Command::Instances(args) => instances::run(args, context),
        Command::Logs(args) => logs::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Pull(args) => pull::run(args, context),
        Command::Prune(args) => prune::run(args, context),
        Command::Rm(args) => rm::run(args, context),
        Command::Config(args) => config::run::<Settings, Error>(args, context).map(|()| Exit::Done),
        Command::Completions(args) => {
            args.run(&Cli::command(), context)?;
            Ok(Exit::Done)
        }
        Command::Man(args) => {
            args.run(&man::PAGES, Cli::command())?;
            Ok(Exit::Done)
        }
        Command::Supervise(args) => supervise::run(args),
        Command::Monitor(args) => {
            monitor::run(args)?;
            Ok(Exit::Done)
        }
    }
}
