//! `monitor`: what stays with a container whose output is kept.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use oci_hooks::container::monitor;

use crate::Exit;
use crate::error::Error;

/// Create a container and keep its output: what this program calls by itself
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct MonitorArgs {
    /// The run directory
    run: PathBuf,
    /// The container's id
    id: String,
    /// The number of the descriptor that leads to the container's mounts
    mounts: RawFd,
}

/// The argument by which this program calls itself.
pub(crate) const MONITOR: &str = "monitor";

pub(crate) fn run(args: &MonitorArgs) -> Result<Exit, Error> {
    monitor(&args.run, &args.id, args.mounts)?;
    Ok(Exit::Done)
}
