//! `container-hook`: GitHub's runner runs its containers without a daemon. See `container-hook --help`.

mod audit;
mod cli;
mod doctor;
mod engine;
mod environment;
mod error;
mod hook;
mod images;
mod import;
mod install;
mod log;
mod logs;
#[cfg(test)]
mod man;
#[cfg(test)]
#[path = "../pages.rs"]
mod pages;
mod prune;
mod ps;
mod pull;
mod relay;
mod rmi;
mod settings;
#[path = "../shared/mod.rs"]
mod shared;
mod signals;
mod stdin;
#[path = "../oci-hooks/style.rs"]
mod style;
mod template;

use std::io::IsTerminal as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command, Format};
use context::Context;
use error::Error;
use shared::{completions, config, context, monitor, progress, table};

/// How a command ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// It was done, and all is well.
    Done,
    /// Something is not as it should be.
    Findings,
    /// Whatever the step says.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => ExitCode::SUCCESS,
            Exit::Findings => ExitCode::FAILURE,
            Exit::Code(code) => ExitCode::from(code),
        }
    }
}

impl From<ExitStatus> for Exit {
    /// As a shell has it: of a process that was killed, 128 and the signal.
    fn from(status: ExitStatus) -> Self {
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Exit::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let command = match &cli.command {
        // What these say is in the log of a step.
        None if !std::io::stdin().is_terminal() => {
            return log::report(|log| hook::run(cli.global.config.as_deref(), log));
        }
        Some(Command::Relay(_)) => return log::report(|_| relay::relay()),
        Some(Command::AsRoot(_)) => return log::report(|_| relay::as_root()),
        None => {
            // If standard output is gone there is nobody to tell.
            let _ = Cli::command().print_help();
            return ExitCode::FAILURE;
        }
        Some(command) => command,
    };
    let mut context = Context::new(&cli.global);
    let result = run(&cli, command, &mut context);
    let result = result.and_then(|exit| context.flush().map(|()| exit));
    match result {
        Ok(exit) => exit.into(),
        // Whoever read the output has what they wanted.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            context.show_error(&error);
            match command {
                Command::Template(_) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn run(cli: &Cli, command: &Command, context: &mut Context) -> Result<Exit, Error> {
    if cli.global.format == Format::Yaml && !matches!(command, Command::Template(_)) {
        return Err(Error::NoYaml);
    }
    match command {
        Command::Install(args) => install::run(args, cli.global.config.as_deref(), context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Audit(args) => audit::run(args, context),
        Command::Ps(args) => ps::run(args, context),
        Command::Logs(args) => logs::run(args, context),
        Command::Images(args) => images::run(args, context),
        Command::Pull(args) => pull::run(args, context),
        Command::Import(args) => import::run(args, context),
        Command::Rmi(args) => rmi::run(args, context),
        Command::Prune(args) => prune::run(args, context),
        Command::Template(args) => template::run(args, context),
        Command::Config(args) => config::run(args, context),
        Command::Completions(args) => completions::run(args, context),
        Command::Monitor(args) => monitor::run(args),
        Command::Relay(_) | Command::AsRoot(_) => unreachable!("these have a log of their own"),
    }
}
