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
use oci_hooks_cli::context::{CliContext, ColorMode};
use oci_hooks_cli::exit::{CliExit, exit_code};
use oci_hooks_cli::{completions, help};

use cli::{PluginCli, PluginCommand};
use error::PluginError;

fn main() -> ExitCode {
    completions::complete(PluginCli::command);
    let cli: PluginCli = help::parse();
    let mut context = CliContext::new(ColorMode::Auto, false);
    let result = run(cli, &mut context);
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::FAILURE
    })
}

fn run(cli: PluginCli, context: &mut CliContext) -> Result<CliExit, PluginError> {
    match cli.command {
        Some(PluginCommand::Completions(args)) => {
            args.run(&PluginCli::command(), context)?;
            context.flush()?;
        }
        Some(PluginCommand::Man(args)) => args.run(&man::PAGES, PluginCli::command())?,
        None => launch::run(cli.options)?,
    }
    Ok(CliExit::Done)
}
