//! `oci-hooks`: explains, lints, injects and manages hook files. See `oci-hooks --help`.

mod cli;
mod context;
mod diff;
mod directories;
mod doctor;
mod error;
mod explain;
mod global;
mod inject;
mod install;
mod lint;
mod list;
mod man;
mod migrate;
mod monitor;
mod new;
mod pattern;
mod remove;
mod run_hook;
mod schema;
mod show;
mod spec;
mod target;
mod validate;

use std::process::ExitCode;

use clap::CommandFactory as _;
use oci_hooks::program::exit::exit_code;
use oci_hooks::program::{completions, help, style, trace};

use cli::{Cli, Command};
use context::Context;
use error::Error;

/// Exit status of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Success: done, a hook matches, no findings.
    Yes,
    /// No match, or findings.
    No,
    /// The exit code of a hook, for `run-hook`.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Yes => ExitCode::SUCCESS,
            Exit::No => ExitCode::FAILURE,
            Exit::Code(code) => ExitCode::from(code),
        }
    }
}

/// Exit code of an error.
const ERROR_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    completions::complete(Cli::command);
    let cli: Cli = help::parse();
    trace::to_stderr(cli.global.log_level);
    let mut context = Context::new(&cli.global);
    let result = cli.check_format().and_then(|()| run(&cli.command, &mut context));
    let result = result.and_then(|exit| context.flush().map(|()| exit));
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::from(ERROR_EXIT_CODE)
    })
}

fn run(command: &Command, context: &mut Context) -> Result<Exit, Error> {
    match command {
        Command::Inject(args) => inject::run(args, context),
        Command::Explain(args) => explain::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Lint(args) => lint::run(args, context),
        Command::List(args) => list::run(args, context),
        Command::Show(args) => show::run(args, context),
        Command::Validate(args) => validate::run(args, context),
        Command::Schema(args) => schema::run(args, context),
        Command::Pattern(args) => pattern::run(args, context),
        Command::Migrate(args) => migrate::run(args, context),
        Command::New(args) => new::run(args, context),
        Command::Install(args) => install::run(args, context),
        Command::Remove(args) => remove::remove(args, context),
        Command::Disable(args) => remove::disable(args, context),
        Command::Enable(args) => remove::enable(args, context),
        Command::Monitor(args) => monitor::run(args, context),
        Command::RunHook(args) => run_hook::run(args, context),
        Command::Completions(args) => {
            context.write(args.script(&Cli::command()))?;
            Ok(Exit::Yes)
        }
        Command::Man(args) => {
            args.run(&man::PAGES, Cli::command())?;
            Ok(Exit::Yes)
        }
    }
}
