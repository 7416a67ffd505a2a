//! `step-runner`: runs CI jobs made of steps. See `step-runner --help`.

mod bootstrap_file;
mod ci;
mod cli;
mod companion;
mod doctor;
mod environment;
mod error;
mod first;
mod gitlab_program;
mod lint;
mod man;
mod play;
mod proxy;
mod quantity;
mod report;
mod resolver;
mod run;
mod schema;
mod serve;
mod steps_command;
mod submit;
mod tree;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use oci_hooks::program::exit::exit_code;
use oci_hooks::program::{completions, help, trace};
use oci_hooks::sys::spawn::keep_descriptors;
use oci_hooks::sys::users;

use cli::{Cli, Command};
use error::Error;
use steps_command::Call;

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
    let words = steps_command::arguments();
    let call = Call::read(words.clone());
    // GitLab's program gets all that we were started with.
    if call == Call::Delegate {
        return end(call.run(&words));
    }
    if matches!(call, Call::Own(_)) {
        completions::complete(Cli::command);
    }
    // Help, versions, completions and man pages need nothing of this machine.
    let command = match &call {
        Call::Own(words) => Some(help::parse_from::<Cli>(words).command),
        _ => None,
    };
    if let Some(Command::Completions(args)) = &command {
        let script = args.script(&Cli::command());
        return end(io::stdout().write_all(&script).map_err(Error::Print).map(|()| Exit::Done));
    }
    if let Some(Command::Man(args)) = &command {
        return end(args
            .run(&man::PAGES, Cli::command())
            .map_err(Error::from)
            .map(|()| Exit::Done));
    }
    users::use_files_and_dns();
    // Commands of steps must not inherit the descriptors that this program was started with.
    if let Err(error) = keep_descriptors() {
        report::error(&format!("cannot list open file descriptors: {error}"));
        return ExitCode::FAILURE;
    }
    let Some(command) = command else {
        trace::to_stderr(None);
        return end(call.run(&words));
    };
    trace::to_stderr(command.log_level());
    let result = match command {
        Command::Run(args) => run::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Lint(args) => lint::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Submit(args) => submit::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(_) | Command::Man(_) => unreachable!("these are done"),
    };
    end(result)
}

/// Returns the exit code of a command, and reports why it failed.
fn end(result: Result<Exit, Error>) -> ExitCode {
    exit_code(result, |error| {
        report::error(&oci_hooks::sys::error::chain(error));
        ExitCode::FAILURE
    })
}
