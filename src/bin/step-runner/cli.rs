//! The command line.

use clap::{Parser, Subcommand};
use oci_hooks::program::completions::CompletionsArgs;

use crate::{bootstrap, ci, lint, proxy, run, schema, serve};

const HELP: &str = "\
Examples:
  step-runner run ./build --input debug=true   Run a step here and now
  step-runner lint .                           Find mistakes in step files
  step-runner serve                            Take jobs at the default socket
  docker exec -i BUILD step-runner proxy       Talk to the server in a container

Exit status:
  0  done
  1  it could not be done, or a step failed
  2  the command line is wrong";

/// Run CI jobs that are made of steps, as GitLab's runner sends them
#[derive(Debug, Parser)]
#[command(name = "step-runner", version, after_help = HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  step-runner completions bash > /etc/bash_completion.d/step-runner";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::RunArgs>),
    Ci(ci::CiArgs),
    Lint(lint::LintArgs),
    Schema(schema::SchemaArgs),
    Serve(serve::ServeArgs),
    Proxy(proxy::ProxyArgs),
    Bootstrap(bootstrap::BootstrapArgs),
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
}
