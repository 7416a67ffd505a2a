//! `step-runner proxy`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use oci_hooks::step_runner::proxy::{End, carry, connect};

use crate::Exit;
use crate::error::Error;
use crate::{environment, report};

/// Carry bytes between standard input and output and the server's socket
#[derive(Args, Debug)]
#[command(after_help = "\
Standard output has what the server says and nothing else. It ends when standard input does, or \
when the server is gone.

Examples:
  docker exec -i BUILD step-runner proxy       Talk to the server in a container")]
pub(crate) struct ProxyArgs {
    /// Socket of the server; STEP_RUNNER_SOCKET, else the one that serve has by default
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Wait this long for a server that is starting
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::time::parse)]
    wait: Duration,
}

pub(crate) fn run(args: &ProxyArgs) -> Result<Exit, Error> {
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => environment::socket().path().to_owned(),
    };
    let server = connect(&path, args.wait)
        .map_err(|error| Error::Dial { path, reason: report::reason(&error) })?;
    // Without the buffers of the standard library: the bytes are not lines.
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(Error::Threads)?;
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(Error::Threads)?;
    match carry(&server, File::from(stdin), File::from(stdout)).map_err(Error::Threads)? {
        End::Client => Ok(Exit::Done),
        End::Server => Err(Error::ServerGone),
        End::Broken(error) => Err(Error::Broken(error)),
    }
}
