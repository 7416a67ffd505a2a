//! `container-hook`: GitHub's runner runs its containers without a daemon. See `container-hook --help`.

#![cfg_attr(
    not(feature = "kubernetes"),
    expect(dead_code, unused_imports, reason = "settings are the same without clusters")
)]

mod as_child;
mod audit;
mod cli;
mod docker;
mod doctor;
mod engine;
mod environment;
mod error;
#[cfg(feature = "kubernetes")]
mod fill;
mod hook;
mod images;
mod import;
mod install;
mod job_backend;
mod jobs;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod log;
mod logs;
mod man;
mod names;
#[cfg(feature = "kubernetes")]
mod pods;
mod prune;
mod ps;
mod pull;
mod rmi;
mod settings;
mod shell;
mod signals;
mod stdin;
mod step;
mod template;
mod try_job;
mod volumes;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use cli::{HookCli, HookSubcommand, ResultFormat};
use container_hook::JobRootFs;
use error::HookCommandError;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::{CliError as _, CliExit, exit_code};
use oci_hooks_cli::{completions, help, trace};
use oci_hooks_engine_cli::{config, monitor, rootless};
use oci_hooks_host::users;
use settings::HookFileSettings;

fn main() -> ExitCode {
    completions::complete(HookCli::command);
    users::use_files_and_dns();
    let cli: HookCli = help::parse();
    let command = match &cli.command {
        // The output of these commands is part of a step's log.
        None if !std::io::stdin().is_terminal() => {
            return log::report(|log| {
                hook::run(cli.global.config.as_deref(), JobRootFs::Image, log)
            });
        }
        Some(HookSubcommand::TryRequest(_)) => {
            return log::report(|log| {
                hook::run(cli.global.config.as_deref(), JobRootFs::Host, log)
            });
        }
        Some(HookSubcommand::AsChild(args)) => {
            return log::report(|log| as_child::run(args, cli.global.config.as_deref(), log));
        }
        None => {
            // Without standard output the error cannot be reported.
            let _ = help::command::<HookCli>().print_help();
            return ExitCode::FAILURE;
        }
        Some(command) => command,
    };
    trace::print_warnings_to_stderr(cli.global.log_level);
    let mut context = cli.global.context();
    let result = run(&cli, command, &mut context);
    let result = result.and_then(|exit| Ok(context.flush().map(|()| exit)?));
    exit_code(result, |error| {
        context.show_error(error);
        // The error's own hint is more specific.
        if error.hint().is_none() {
            let missing = rootless::missing_requirement(error, error.namespace_error());
            context.hint(missing.as_deref());
        }
        match command {
            HookSubcommand::Template(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    })
}

fn run(
    cli: &HookCli,
    command: &HookSubcommand,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    if cli.global.format == ResultFormat::Yaml && !matches!(command, HookSubcommand::Template(_)) {
        return Err(HookCommandError::NoYaml);
    }
    match command {
        HookSubcommand::Install(args) => install::run(args, context),
        HookSubcommand::Doctor(args) => doctor::run(args, context),
        HookSubcommand::Audit(args) => audit::run(args, context),
        HookSubcommand::Ps(args) => ps::run(args, context),
        HookSubcommand::Logs(args) => logs::run(args, context),
        HookSubcommand::Shell(args) => shell::run(args, context),
        HookSubcommand::Images(args) => images::run(args, context),
        HookSubcommand::Pull(args) => pull::run(args, context),
        HookSubcommand::Import(args) => import::run(args, context),
        HookSubcommand::Rmi(args) => rmi::run(args, context),
        HookSubcommand::Volumes(args) => volumes::run(args, context),
        HookSubcommand::Prune(args) => prune::run(args, context),
        HookSubcommand::Template(args) => template::run(args, context),
        HookSubcommand::Try(args) => try_job::run(args, context),
        HookSubcommand::Config(args) => {
            config::run::<HookFileSettings, HookCommandError>(args, context).map(|()| CliExit::Done)
        }
        HookSubcommand::Completions(args) => {
            args.run(&HookCli::command(), context)?;
            Ok(CliExit::Done)
        }
        HookSubcommand::Man(args) => {
            args.run(&man::PAGES, HookCli::command())?;
            Ok(CliExit::Done)
        }
        HookSubcommand::Monitor(args) => {
            monitor::run(args)?;
            Ok(CliExit::Done)
        }
        #[cfg(feature = "kubernetes")]
        HookSubcommand::Fill(args) => fill::run(args),
        HookSubcommand::AsChild(_) | HookSubcommand::TryRequest(_) => {
            unreachable!("these have a log of their own")
        }
    }
}
