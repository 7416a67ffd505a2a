//! `step-runner completions`.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::Exit;
use crate::cli::Cli;
use crate::error::Error;

/// Print the completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  step-runner completions bash > /etc/bash_completion.d/step-runner")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "step-runner", &mut script);
    io::stdout().write_all(&script).map_err(Error::Print)?;
    Ok(Exit::Done)
}
