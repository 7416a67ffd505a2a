//! `completions`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::Exit;
use crate::cli::Cli;
use crate::context::Context;
use crate::error::Error;

/// Print the completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = concat!("Examples:\n  ", env!("CARGO_BIN_NAME"), " completions bash > /etc/bash_completion.d/", env!("CARGO_BIN_NAME")))]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), env!("CARGO_BIN_NAME"), &mut script);
    context.write(script)?;
    Ok(Exit::Done)
}
