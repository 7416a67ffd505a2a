//! `monitor`: what stays with a container whose output is kept.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;

use crate::container::{ContainerError, monitor};

/// Create a container and keep its output; called by this program itself
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct MonitorArgs {
    /// The run directory
    run: PathBuf,
    /// The container's id
    id: String,
    /// The number of the descriptor that leads to the container's mounts
    mounts: RawFd,
}

/// The argument by which this program calls itself.
pub const MONITOR: &str = "monitor";

/// Creates the container, and returns when its output has ended.
pub fn run(args: &MonitorArgs) -> Result<(), ContainerError> {
    monitor(&args.run, &args.id, args.mounts)
}
