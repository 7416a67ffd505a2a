//! `oci-hooks disable`.

use std::ffi::OsString;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::manage::Editor;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::install::change;
use crate::names;

/// Disable a hook for all containers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks disable oci-nvidia-hook
  oci-hooks disable --dry-run oci-nvidia-hook

A hook in an earlier directory is masked by a file of the same name that never matches. One in the
last directory is renamed to NAME.json.disabled, which no consumer reads.")]
pub(crate) struct DisableArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(names::active))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &DisableArgs, context: &mut Context) -> Result<Exit, Error> {
    change(&args.name, args.dry_run, context, Editor::disable)
}
