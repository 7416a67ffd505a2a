//! `oci-hooks remove`.

use std::ffi::OsString;

use clap::Args;
use oci_hooks::hooks::manage::HookName;

use crate::Exit;
use crate::changes;
use crate::context::Context;
use crate::error::Error;
use crate::install::editor;

/// Remove a hook file from the last hook directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks remove my-hook

Hooks of earlier directories belong to the packages they came with: disable them instead.")]
pub(crate) struct RemoveArgs {
    /// Name of the hook; .json may be left out
    name: OsString,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &RemoveArgs, context: &mut Context) -> Result<Exit, Error> {
    let editor = editor(context, args.dry_run);
    let change = editor.remove(&HookName::new(&args.name)?)?;
    changes::report(change, editor.mode, context)
}
