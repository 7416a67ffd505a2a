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
mod signals;
mod stdin;
mod step;
mod template;
mod try_job;
mod volumes;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use cli::{Cli, Command, Format};
use error::Error;
use oci_hooks::container_hook::engine::JobSystem;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::{Exit, Failure as _, exit_code};
use oci_hooks::program::{completions, config, help, monitor, rootless, trace};
use oci_hooks::sys::users;
use settings::Settings;

fn main() -> ExitCode {
    completions::complete(Cli::command);
    users::use_files_and_dns();
    let cli: Cli = help::parse();
    let command = match &cli.command {
        // The output of these is part of a step's log.
        None if !std::io::stdin().is_terminal() => {
            return log::report(|log| {
                hook::run(cli.global.config.as_deref(), JobSystem::Image, log)
            });
        }
        Some(Command::TryRequest(_)) => {
            return log::report(|log| {
                hook::run(cli.global.config.as_deref(), JobSystem::Host, log)
            });
        }
        Some(Command::AsChild(args)) => {
            return log::report(|log| as_child::run(args, cli.global.config.as_deref(), log));
        }
        None => {
            // Without standard output the error cannot be reported.
            let _ = help::command::<Cli>().print_help();
            return ExitCode::FAILURE;
        }
        Some(command) => command,
    };
    trace::with_warnings_to_stderr(cli.global.log_level);
    let mut context = cli.global.context();
    let result = run(&cli, command, &mut context);
    let result = result.and_then(|exit| Ok(context.flush().map(|()| exit)?));
    exit_code(result, |error| {
        context.show_error(error);
        // The hint of the error itself is more precise.
        if error.hint().is_none() {
            context.hint(rootless::lacking(error).as_deref());
        }
        match command {
            Command::Template(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    })
}

fn run(cli: &Cli, command: &Command, context: &mut Context) -> Result<Exit, Error> {
    if cli.global.format == Format::Yaml && !matches!(command, Command::Template(_)) {
        return Err(Error::NoYaml);
    }
    match command {
        Command::Install(args) => install::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Audit(args) => audit::run(args, context),
        Command::Ps(args) => ps::run(args, context),
        Command::Logs(args) => logs::run(args, context),
        Command::Images(args) => images::run(args, context),
        Command::Pull(args) => pull::run(args, context),
        Command::Import(args) => import::run(args, context),
        Command::Rmi(args) => rmi::run(args, context),
        Command::Volumes(args) => volumes::run(args, context),
        Command::Prune(args) => prune::run(args, context),
        Command::Template(args) => template::run(args, context),
        Command::Try(args) => try_job::run(args, context),
        Command::Config(args) => config::run::<Settings, Error>(args, context).map(|()| Exit::Done),
        Command::Completions(args) => {
            args.run(&Cli::command(), context)?;
            Ok(Exit::Done)
        }
        Command::Man(args) => {
            args.run(&man::PAGES, Cli::command())?;
            Ok(Exit::Done)
        }
        Command::Monitor(args) => {
            monitor::run(args)?;
            Ok(Exit::Done)
        }
        #[cfg(feature = "kubernetes")]
        Command::Fill(args) => fill::run(args),
        Command::AsChild(_) | Command::TryRequest(_) => {
            unreachable!("these have a log of their own")
        }
    }
}
