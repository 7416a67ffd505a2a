//! `step-runner`: runs CI jobs that are made of steps. See `step-runner --help`.

mod bootstrap;
mod cli;
mod completions;
mod environment;
mod error;
#[cfg(test)]
mod man;
#[cfg(test)]
#[path = "../pages.rs"]
mod pages;
mod proxy;
mod report;
mod serve;
mod size;
mod time;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};

/// How a command ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// It was done, and all is well.
    Done,
    /// Whatever a command says that was run.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => ExitCode::SUCCESS,
            Exit::Code(code) => ExitCode::from(code),
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Bootstrap(args) => bootstrap::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    match result {
        Ok(exit) => exit.into(),
        // Whoever read the output has what they wanted.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            report::error(&oci_hooks::sys::error::chain(&error));
            ExitCode::FAILURE
        }
    }
}
