//! `container-hook fill`: the init container of a job's pod.

use std::path::PathBuf;

use clap::Args;
use container_hook_kubernetes::PodFiles;
use oci_hooks_cli::exit::CliExit;

use crate::error::HookCommandError;

/// Prepare the volumes of a job's pod; called by its init container
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct FillArgs {
    /// Install the agent as FILE
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Copy the contents of the directory FROM to the directory TO (can be repeated)
    #[arg(long = "copy", num_args = 2, value_names = ["FROM", "TO"])]
    copies: Vec<PathBuf>,
    /// Create DIR, writable by all users (can be repeated)
    #[arg(long = "directory", value_name = "DIR")]
    directories: Vec<PathBuf>,
}

pub fn run(args: &FillArgs) -> Result<CliExit, HookCommandError> {
    let copies = args.copies.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    let filling = PodFiles {
        agent: args.agent.clone(),
        copies: copies.collect(),
        directories: args.directories.clone(),
    };
    filling.fill()?;
    Ok(CliExit::Done)
}
