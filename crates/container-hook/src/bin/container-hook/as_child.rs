//! `container-hook as-child`: a request of the runner, relayed by a program that cannot `exec` this one.
//!
//! The runner runs hooks that end in `.js` with its own node (`contrib/images/arc-runner/index.js`), and
//! kills only that process: this process has to end with it.

use std::path::Path;

use clap::Args;
use container_hook::JobRootFs;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::spawn;

use crate::error::HookCommandError;
use crate::hook;
use crate::log::StepLog;

/// Carry out a request, and end with the process that started this one; called by contrib/images/arc-runner/index.js
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct AsChildArgs {
    /// Id of the process that started this one
    #[arg(value_name = "PID")]
    parent: u32,
}

/// Carries out the request on standard input, until the parent process ends.
pub fn run(
    args: &AsChildArgs,
    config: Option<&Path>,
    log: &StepLog,
) -> Result<CliExit, HookCommandError> {
    let AsChildArgs { parent } = *args;
    spawn::die_with_parent(parent).map_err(|source| HookCommandError::Parent { parent, source })?;
    hook::run(config, JobRootFs::Image, log)
}
