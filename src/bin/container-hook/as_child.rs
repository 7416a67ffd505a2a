//! `container-hook as-child`: a request of the runner by way of a program that cannot become this one.
//!
//! The runner has its own node run hooks that end in `.js` (`contrib/images/arc-runner/index.js`), and knows
//! only that process: what it kills must not go on as this one.

use std::io;
use std::path::Path;

use clap::Args;
use oci_hooks::container_hook::engine::JobSystem;
use oci_hooks::program::exit::Exit;
use oci_hooks::sys::spawn;

use crate::hook::{self, CallError};
use crate::log::Log;

/// Carry out a request, and end with the process that started this one; called by contrib/images/arc-runner/index.js
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct AsChildArgs {
    /// Process that started this one
    #[arg(value_name = "PID")]
    parent: u32,
}

/// A request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AsChildError {
    #[error("process {parent} is not the one that started this one, or has ended")]
    Parent { parent: u32, source: io::Error },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Carries out the request on standard input for as long as the parent is there.
pub fn run(args: &AsChildArgs, config: Option<&Path>, log: &Log) -> Result<Exit, AsChildError> {
    let AsChildArgs { parent } = *args;
    spawn::die_with_parent(parent).map_err(|source| AsChildError::Parent { parent, source })?;
    Ok(hook::run(config, JobSystem::Image, log)?)
}
