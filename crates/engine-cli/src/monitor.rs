//! `monitor` command: the process that stays with a container to log its output.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use oci_hooks_engine::container::{ContainerError, monitor};

/// Create a container and keep its output; called by this program itself
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct MonitorArgs {
    /// Run directory
    run: PathBuf,
    /// Container id
    id: String,
    /// File descriptor of the container's mounts
    mounts: RawFd,
}

/// Name of the subcommand by which this program runs itself as a monitor.
pub const MONITOR: &str = "monitor";

/// Creates the container, and returns when its output is closed.
pub fn run(args: &MonitorArgs) -> Result<(), ContainerError> {
    monitor(&args.run, &args.id, args.mounts)
}
