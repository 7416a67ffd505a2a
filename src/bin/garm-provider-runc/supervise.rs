//! `garm-provider-runc supervise`: what stays with an instance.

use std::path::Path;

use clap::Args;
use oci_hooks::garm::{SupervisorProgram, supervise};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::relayed::this_program;
use oci_hooks::sys::fs::PathError;

use crate::error::Error;
use crate::settings::Settings;

/// Start a runner and stay until it ends; called by this program itself
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct SuperviseArgs {
    /// The controller
    controller: String,
    /// The instance
    name: String,
}

/// Returns how this program is called to stay with an instance, with these settings.
pub(crate) fn program(config: Option<&Path>) -> Result<SupervisorProgram, PathError> {
    let mut arguments = vec!["supervise".to_owned()];
    if let Some(path) = config {
        arguments.extend(["--config".to_owned(), path.display().to_string()]);
    }
    // The controller is any text.
    arguments.push("--".to_owned());
    Ok(SupervisorProgram { path: this_program()?, arguments })
}

pub(crate) fn run(args: &SuperviseArgs, context: &Context) -> Result<Exit, Error> {
    let engine = context.settings::<Settings>()?.settings.host().existing()?;
    supervise(&engine, &args.controller, &args.name)?;
    Ok(Exit::Done)
}
