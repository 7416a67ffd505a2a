//! `oci-hooks enable`.

use std::ffi::OsString;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::manage::Editor;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::install::change;
use crate::names;

/// Enable a hook that was disabled
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks enable oci-nvidia-hook

The hook file is restored byte for byte.")]
pub(crate) struct EnableArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(names::disabled))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &EnableArgs, context: &mut Context) -> Result<Exit, Error> {
    change(&args.name, args.dry_run, context, Editor::enable)
}
