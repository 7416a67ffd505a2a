//! `step-runner`: runs CI jobs made of steps. See `step-runner --help`.

mod bootstrap;
mod ci;
mod cli;
mod environment;
mod error;
mod first;
mod lint;
#[cfg(test)]
mod man;
mod play;
mod proxy;
mod report;
mod resolver;
mod run;
mod schema;
mod serve;
mod size;
mod time;
mod tree;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use oci_hooks::program::exit::exit_code;
use oci_hooks::program::{completions, trace};
use oci_hooks::sys::spawn::keep_descriptors;
use oci_hooks::sys::users;

use cli::{Cli, Command};
use error::Error;

/// Exit status of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Success, without lint findings.
    Done,
    /// A step failed, or a step file has errors or warnings.
    Failed,
    /// The exit code of a step's command, or of the command of `serve`.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => ExitCode::SUCCESS,
            Exit::Failed => ExitCode::FAILURE,
            Exit::Code(code) => ExitCode::from(code),
        }
    }
}

fn main() -> ExitCode {
    completions::complete(Cli::command);
    users::use_files_and_dns();
    // Commands of steps must not inherit the descriptors that this program was started with.
    if let Err(error) = keep_descriptors() {
        report::error(&format!("cannot list open file descriptors: {error}"));
        return ExitCode::FAILURE;
    }
    let command = Cli::parse().command;
    trace::to_stderr(command.log_level());
    let result = match command {
        Command::Run(args) => run::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Lint(args) => lint::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Bootstrap(args) => bootstrap::run(&args),
        Command::Completions(args) => {
            let script = args.script(&Cli::command());
            io::stdout().write_all(&script).map_err(Error::Print).map(|()| Exit::Done)
        }
    };
    exit_code(result, |error| {
        report::error(&oci_hooks::sys::error::chain(error));
        ExitCode::FAILURE
    })
}
