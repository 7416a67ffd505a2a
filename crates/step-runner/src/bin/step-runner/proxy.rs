//! `step-runner proxy`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use oci_hooks_cli::exit::CliExit;
use step_runner::proxy::{CloseReason, connect, forward};

use crate::error::StepRunnerError;
use crate::{environment, report};

/// Forward bytes between standard input and output and the server's socket
#[derive(Args, Debug)]
#[command(after_help = "\
Only the server's bytes are written to standard output. The command exits when standard input ends or \
the server closes the connection.

Examples:
  docker exec -i BUILD step-runner proxy       Connect to the server in a container")]
pub struct ProxyArgs {
    /// Socket of the server [default: STEP_RUNNER_SOCKET, or else the default socket of serve]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Time limit for retries while the server is starting; 0s for a single attempt
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::quantity::time)]
    wait: Duration,
}

pub fn run(args: &ProxyArgs) -> Result<CliExit, StepRunnerError> {
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => environment::server_socket(),
    };
    let server = connect(&path, args.wait)
        .map_err(|error| StepRunnerError::Dial { path, reason: report::reason(&error) })?;
    // Unbuffered, because the standard library's stdout is line-buffered.
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(StepRunnerError::Threads)?;
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(StepRunnerError::Threads)?;
    match forward(&server, File::from(stdin), File::from(stdout))
        .map_err(StepRunnerError::Threads)?
    {
        CloseReason::Client => Ok(CliExit::Done),
        CloseReason::Server => Err(StepRunnerError::ServerGone),
        CloseReason::Broken(error) => Err(StepRunnerError::Broken(error)),
    }
}
