//! `container-hook fill`: the init container of a job's pod.

use std::path::PathBuf;

use clap::Args;
use oci_hooks::container_hook::kubernetes::Filling;
use oci_hooks::program::exit::Exit;

use crate::error::Error;

/// Bring what a job needs to the volumes of its pod; called by its init container
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct FillArgs {
    /// Install the agent as FILE
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Copy what is in the directory FROM to the directory TO (can be repeated)
    #[arg(long = "copy", num_args = 2, value_names = ["FROM", "TO"])]
    copies: Vec<PathBuf>,
    /// Make DIR, writable by everybody (can be repeated)
    #[arg(long = "directory", value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Make a symbolic link at LINK that leads to TARGET (can be repeated)
    #[arg(long = "link", num_args = 2, value_names = ["TARGET", "LINK"])]
    links: Vec<PathBuf>,
}

pub fn run(args: &FillArgs) -> Result<Exit, Error> {
    let pairs = |paths: &[PathBuf]| {
        paths.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    };
    let filling = Filling {
        agent: args.agent.clone(),
        copies: pairs(&args.copies),
        directories: args.directories.clone(),
        links: pairs(&args.links),
    };
    filling.fill()?;
    Ok(Exit::Done)
}
