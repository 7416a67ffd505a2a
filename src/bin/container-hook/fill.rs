//! `container-hook fill`: the init container of a job's pod.

use std::path::PathBuf;

use clap::Args;
use oci_hooks::program::exit::Exit;

use crate::error::Error;
use crate::kubernetes;

/// Bring what a job needs to the volumes of its pod; called by its init container
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct FillArgs {
    /// Install the agent as FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) agent: Option<PathBuf>,
    /// Copy what is in the directory FROM to the directory TO (can be repeated)
    #[arg(long = "copy", num_args = 2, value_names = ["FROM", "TO"])]
    pub(crate) copies: Vec<PathBuf>,
    /// Make DIR, writable by everybody (can be repeated)
    #[arg(long = "directory", value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// Make a symbolic link at LINK that leads to TARGET (can be repeated)
    #[arg(long = "link", num_args = 2, value_names = ["TARGET", "LINK"])]
    pub(crate) links: Vec<PathBuf>,
}

pub(crate) fn run(args: &FillArgs) -> Result<Exit, Error> {
    if !kubernetes::IS_BUILT {
        return Err(Error::NoKubernetes);
    }
    kubernetes::fill(args)
}
