//! `oci-hooks remove`.

use std::ffi::OsString;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::manage::Editor;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::install::change;
use crate::names;

/// Remove a hook file from the last directory that the consumer reads
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks remove my-hook

Hooks in earlier directories belong to packages: disable them instead.")]
pub(crate) struct RemoveArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(names::active))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &RemoveArgs, context: &mut Context) -> Result<Exit, Error> {
    change(&args.name, args.dry_run, context, Editor::remove)
}
