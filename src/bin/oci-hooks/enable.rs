//! `oci-hooks enable`.

use std::ffi::OsString;

use clap::Args;
use oci_hooks::hooks::manage::HookName;

use crate::Exit;
use crate::changes;
use crate::context::Context;
use crate::error::Error;
use crate::install::editor;

/// Undo disable
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks enable oci-nvidia-hook

The hook file is what it was, byte for byte.")]
pub(crate) struct EnableArgs {
    /// Name of the hook; .json may be left out
    name: OsString,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &EnableArgs, context: &mut Context) -> Result<Exit, Error> {
    let editor = editor(context, args.dry_run);
    let change = editor.enable(&HookName::new(&args.name)?)?;
    changes::report(change, editor.mode, context)
}
