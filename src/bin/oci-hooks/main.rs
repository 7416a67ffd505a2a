//! `oci-hooks`: explains, lints, injects and manages hook files. See `oci-hooks --help`.

mod cli;
mod container;
mod context;
mod devices;
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
use oci_hooks_cli::exit::exit_code;
use oci_hooks_cli::{completions, help, style, trace};

use cli::{Cli, HooksCommand};
use context::CommandContext;
use error::HooksCommandError;

/// Exit status of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandExit {
    /// Success: done, a hook matches, no findings.
    Yes,
    /// No match, or findings.
    No,
    /// The exit code of a hook, for `run-hook`.
    Code(u8),
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> Self {
        match exit {
            CommandExit::Yes => ExitCode::SUCCESS,
            CommandExit::No => ExitCode::FAILURE,
            CommandExit::Code(code) => ExitCode::from(code),
        }
    }
}

/// Exit code of an error.
const ERROR_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    completions::complete(Cli::command);
    let cli: Cli = help::parse();
    trace::to_stderr(cli.global.log_level);
    let mut context = CommandContext::new(&cli.global);
    let result = cli.check_format().and_then(|()| run(&cli.command, &mut context));
    let result = result.and_then(|exit| context.flush().map(|()| exit));
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::from(ERROR_EXIT_CODE)
    })
}

fn run(
    command: &HooksCommand,
    context: &mut CommandContext,
) -> Result<CommandExit, HooksCommandError> {
    match command {
        HooksCommand::Inject(args) => inject::run(args, context),
        HooksCommand::Explain(args) => explain::run(args, context),
        HooksCommand::Doctor(args) => doctor::run(args, context),
        HooksCommand::Lint(args) => lint::run(args, context),
        HooksCommand::List(args) => list::run(args, context),
        HooksCommand::Show(args) => show::run(args, context),
        HooksCommand::Validate(args) => validate::run(args, context),
        HooksCommand::Schema(args) => schema::run(args, context),
        HooksCommand::Pattern(args) => pattern::run(args, context),
        HooksCommand::Migrate(args) => migrate::run(args, context),
        HooksCommand::New(args) => new::run(args, context),
        HooksCommand::Install(args) => install::run(args, context),
        HooksCommand::Remove(args) => remove::remove(args, context),
        HooksCommand::Disable(args) => remove::disable(args, context),
        HooksCommand::Enable(args) => remove::enable(args, context),
        HooksCommand::Monitor(args) => monitor::run(args, context),
        HooksCommand::RunHook(args) => run_hook::run(args, context),
        HooksCommand::Completions(args) => {
            context.write(args.script(&Cli::command()))?;
            Ok(CommandExit::Yes)
        }
        HooksCommand::Man(args) => {
            args.run(&man::PAGES, Cli::command())?;
            Ok(CommandExit::Yes)
        }
    }
}
