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

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use oci_hooks_cli::exit::{CliExit, exit_code};
use oci_hooks_cli::{completions, help, style, trace};

use cli::{Cli, HooksCommand};
use context::CommandContext;
use error::HooksCommandError;

/// Exit code of an error.
const ERROR_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    completions::complete(Cli::command);
    let words: Vec<_> = std::env::args_os().collect();
    let cli: Cli = match help::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && wants_json_errors(&words) => {
            let error = to_usage_error(&error).diagnostic().to_json("error");
            // A closed standard error cannot be reported.
            let _ = writeln!(io::stderr(), "{error}");
            return ExitCode::from(ERROR_EXIT_CODE);
        }
        Err(error) => error.exit(),
    };
    trace::to_stderr(cli.global.log_level);
    let mut context = CommandContext::new(&cli.global);
    let result = cli.check_format().and_then(|()| run(&cli.command, &mut context));
    let result = result.and_then(|exit| context.flush().map(|()| exit));
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::from(ERROR_EXIT_CODE)
    })
}

fn wants_json_errors(words: &[OsString]) -> bool {
    words.iter().any(|word| word == "--error-format=json")
        || words.windows(2).any(|pair| pair[0] == "--error-format" && pair[1] == "json")
}

fn to_usage_error(error: &clap::Error) -> HooksCommandError {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let message = paragraphs.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let hint = paragraphs.find_map(|paragraph| paragraph.strip_prefix("tip: ")).map(str::to_owned);
    HooksCommandError::Usage { message, hint }
}

fn run(command: &HooksCommand, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    if command.has_consumer() {
        context.use_installed();
    }
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
            Ok(CliExit::Done)
        }
        HooksCommand::Man(args) => {
            args.run(&man::PAGES, Cli::command())?;
            Ok(CliExit::Done)
        }
    }
}
