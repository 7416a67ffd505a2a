//! `garm-provider-runc`: runs GARM's runners as OCI containers. See `garm-provider-runc --help`.

mod backend;
mod call;
mod cli;
mod doctor;
mod error;
mod instances;
mod logs;
mod man;
mod prune;
mod pull;
mod rm;
mod settings;
mod supervise;

use std::env;
use std::process::ExitCode;

use clap::CommandFactory as _;
use cli::{AdminCommand, ProviderCli};
use error::AdminError;
use garm_provider_runc::COMMAND_VARIABLE;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::{CliExit, exit_code};
use oci_hooks_cli::{completions, help, trace};
use oci_hooks_engine_cli::{config, monitor};
use oci_hooks_files::spawn;
use oci_hooks_host::users;
use settings::GarmFileSettings;

fn main() -> ExitCode {
    completions::complete(ProviderCli::command);
    users::use_files_and_dns();
    // GARM waits until its pipes are closed; no child needs the descriptors that this process inherits.
    let kept = spawn::close_inherited_on_exec();
    // GARM passes a variable and no arguments.
    if env::args_os().len() == 1 && env::var_os(COMMAND_VARIABLE).is_some() {
        trace::print_warnings_to_stderr(None);
        return match kept {
            Ok(()) => call::run_from_environment(),
            Err(error) => call::report_error(&error),
        };
    }
    let cli: ProviderCli = help::parse();
    let command = match &cli.command {
        None => {
            // Without standard output the error cannot be reported.
            let _ = help::command::<ProviderCli>().print_help();
            return ExitCode::FAILURE;
        }
        Some(command) => command,
    };
    trace::print_warnings_to_stderr(cli.global.log_level);
    let mut context = cli.global.context();
    let result = run(command, &mut context);
    let result = result.and_then(|exit| Ok(context.flush().map(|()| exit)?));
    exit_code(result, |error| {
        context.show_error(error);
        ExitCode::FAILURE
    })
}

fn run(command: &AdminCommand, context: &mut CliContext) -> Result<CliExit, AdminError> {
    match command {
        AdminCommand::Instances(args) => instances::run(args, context),
        AdminCommand::Logs(args) => logs::run(args, context),
        AdminCommand::Doctor(args) => doctor::run(args, context),
        AdminCommand::Pull(args) => pull::run(args, context),
        AdminCommand::Prune(args) => prune::run(args, context),
        AdminCommand::Rm(args) => rm::run(args, context),
        AdminCommand::Config(args) => {
            config::run::<GarmFileSettings, AdminError>(args, context).map(|()| CliExit::Done)
        }
        AdminCommand::Completions(args) => {
            args.run(&ProviderCli::command(), context)?;
            Ok(CliExit::Done)
        }
        AdminCommand::Man(args) => {
            args.run(&man::PAGES, ProviderCli::command())?;
            Ok(CliExit::Done)
        }
        AdminCommand::Supervise(args) => supervise::run(args),
        AdminCommand::Monitor(args) => {
            monitor::run(args)?;
            Ok(CliExit::Done)
        }
    }
}
