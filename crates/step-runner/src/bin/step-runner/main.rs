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
mod local_job;
mod man;
mod proxy;
mod quantity;
mod report;
mod resolver;
mod run;
mod schema;
mod serve;
mod step_args;
mod steps_command;
mod submit;
mod tree;

use std::process::ExitCode;

use clap::CommandFactory as _;
use oci_hooks_cli::exit::{CliExit, exit_code};
use oci_hooks_cli::{completions, help, trace};
use oci_hooks_files::spawn::close_inherited_on_exec;
use oci_hooks_host::users;

use cli::{StepRunnerCli, StepRunnerCommand};
use error::StepRunnerError;
use steps_command::CommandLine;

fn main() -> ExitCode {
    let words = steps_command::arguments();
    let call = CommandLine::read(words.clone());
    // GitLab's program gets all of our arguments.
    if call == CommandLine::Delegate {
        return end(call.run(&words));
    }
    if matches!(call, CommandLine::Own(_)) {
        completions::complete(StepRunnerCli::command);
    }
    // Help, versions, completions and man pages do not depend on the machine.
    let command = match &call {
        CommandLine::Own(words) => Some(help::parse_from::<StepRunnerCli>(words).command),
        _ => None,
    };
    if let Some(StepRunnerCommand::Completions(args)) = &command {
        return end(report::print(args.script(&StepRunnerCli::command())));
    }
    if let Some(StepRunnerCommand::Man(args)) = &command {
        return end(args
            .run(&man::PAGES, StepRunnerCli::command())
            .map_err(StepRunnerError::from)
            .map(|()| CliExit::Done));
    }
    users::use_files_and_dns();
    // Commands of steps must not inherit the descriptors that this program was started with.
    if let Err(error) = close_inherited_on_exec() {
        report::error(&format!("cannot list open file descriptors: {error}"));
        return ExitCode::FAILURE;
    }
    let Some(command) = command else {
        trace::to_stderr(None);
        return end(call.run(&words));
    };
    trace::to_stderr(command.log_level());
    let result = match command {
        StepRunnerCommand::Run(args) => run::run(&args),
        StepRunnerCommand::Ci(args) => ci::run(&args),
        StepRunnerCommand::Lint(args) => lint::run(&args),
        StepRunnerCommand::Schema(args) => schema::run(&args),
        StepRunnerCommand::Serve(args) => serve::run(args),
        StepRunnerCommand::Proxy(args) => proxy::run(&args),
        StepRunnerCommand::Submit(args) => submit::run(&args),
        StepRunnerCommand::Doctor(args) => doctor::run(&args),
        StepRunnerCommand::Completions(_) | StepRunnerCommand::Man(_) => {
            unreachable!("these are done")
        }
    };
    end(result)
}

/// Returns the exit code of a command, and reports its error.
fn end(result: Result<CliExit, StepRunnerError>) -> ExitCode {
    exit_code(result, |error| {
        report::error(&oci_hooks_files::error::chain(error));
        ExitCode::FAILURE
    })
}
