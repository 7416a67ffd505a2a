//! The command line.

use clap::{Parser, Subcommand};
use oci_hooks_cli::completions::CompletionsArgs;
use oci_hooks_cli::man::ManArgs;
use oci_hooks_cli::trace::LevelFilter;

use crate::{ci, doctor, lint, proxy, run, schema, serve, submit};

const HELP: &str = "\
Examples:
  step-runner run ./build --input debug=true   Run a step locally
  step-runner lint .                           Check step files for mistakes
  step-runner serve                            Accept jobs on the default socket
  docker exec -i BUILD step-runner proxy       Connect to the server in a container
  step-runner doctor                           Check for problems

If called as gitlab-runner-helper or gitlab-runner, or with steps as the first argument,
step-runner accepts the command lines of GitLab's program: see step-runner steps --help.

Exit status:
  0  success
  1  error, or a step failed
  2  bad usage

Step files, masking, time limits, GitLab Runner's helper image, troubleshooting, uninstall: see
man step-runner, and steps.md and gitlab-runner.md in /usr/share/doc/step-runner or in docs/ of the
repository.";

/// Run CI jobs made of steps, as GitLab's runner sends them
#[derive(Debug, Parser)]
#[command(name = "step-runner", version, after_help = HELP)]
pub struct StepRunnerCli {
    #[command(subcommand)]
    pub command: StepRunnerCommand,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  step-runner completions bash > /etc/bash_completion.d/step-runner";

#[derive(Debug, Subcommand)]
pub enum StepRunnerCommand {
    Run(Box<run::RunArgs>),
    Ci(ci::CiArgs),
    Lint(lint::LintArgs),
    Schema(schema::SchemaArgs),
    Serve(serve::ServeArgs),
    Proxy(proxy::ProxyArgs),
    Submit(Box<submit::SubmitArgs>),
    Doctor(doctor::DoctorArgs),
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    Man(ManArgs),
}

impl StepRunnerCommand {
    /// Returns the minimum level of logged events, if the command line sets one.
    pub fn log_level(&self) -> Option<LevelFilter> {
        match self {
            StepRunnerCommand::Serve(args) => args.events(),
            _ => None,
        }
    }
}
