//! `oci-hooks-nri`: applies hooks.d to containers of containerd and CRI-O. See `oci-hooks-nri --help`.

mod cli;
mod error;
mod launch;
mod log;
mod man;
mod metrics_file;
mod plugin;
mod serve;
mod settings;

use std::process::ExitCode;

use clap::CommandFactory as _;
use oci_hooks::program::context::{Color, Context};
use oci_hooks::program::exit::{Exit, exit_code};
use oci_hooks::program::{completions, help};

use cli::{Cli, Command};
use error::Error;

fn main() -> ExitCode {
    completions::complete(Cli::command);
    let cli: Cli = help::parse();
    let mut context = Context::new(Color::Auto, false);
    let result = run(cli, &mut context);
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::FAILURE
    })
}

fn run(cli: Cli, context: &mut Context) -> Result<Exit, Error> {
    match cli.command {
        Some(Command::Completions(args)) => {
            args.run(&Cli::command(), context)?;
            context.flush()?;
        }
        Some(Command::Man(args)) => args.run(&man::PAGES, Cli::command())?,
        None => launch::run(cli.options)?,
    }
    Ok(Exit::Done)
}
