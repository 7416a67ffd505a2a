//! `container-hook`: GitHub's runner runs its containers without a daemon. See `container-hook --help`.

mod cli;
mod completions;
mod config;
mod context;
mod engine;
mod environment;
mod error;
mod hook;
mod install;
mod log;
mod progress;
mod relay;
mod settings;
mod signals;
mod stdin;
#[path = "../oci-hooks/style.rs"]
mod style;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command};
use context::Context;
use error::Error;

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

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Some(command) = &cli.command else {
        return without_command(&cli);
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

/// Does what the runner asks for, or tells a person what this program is.
fn without_command(cli: &Cli) -> ExitCode {
    if std::io::stdin().is_terminal() {
        // If standard output is gone there is nobody to tell.
        let _ = Cli::command().print_help();
        return ExitCode::FAILURE;
    }
    hook::run(cli.global.config.as_deref())
}

fn run(command: &Command, context: &mut Context) -> Result<Exit, Error> {
    match command {
        Command::Install(args) => install::run(args, context),
        Command::Config(args) => config::run(args, context),
        Command::Completions(args) => completions::run(args, context),
        Command::Relay(_) => Ok(relay::relay()?),
        Command::AsRoot(_) => Ok(relay::as_root()?),
    }
}
