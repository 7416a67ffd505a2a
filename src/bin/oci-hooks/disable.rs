//! `oci-hooks disable`.

use std::ffi::OsString;

use clap::Args;
use oci_hooks::hooks::manage::HookName;

use crate::Exit;
use crate::changes;
use crate::context::Context;
use crate::error::Error;
use crate::install::editor;

/// Keep a hook from applying to any container
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks disable oci-nvidia-hook
  oci-hooks disable --dry-run oci-nvidia-hook

A hook of an earlier directory is masked by a file of its name that never applies. One of the last
directory is kept as NAME.json.disabled, which no consumer reads.")]
pub(crate) struct DisableArgs {
    /// Name of the hook; .json may be left out
    name: OsString,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &DisableArgs, context: &mut Context) -> Result<Exit, Error> {
    let editor = editor(context, args.dry_run);
    let change = editor.disable(&HookName::new(&args.name)?)?;
    changes::report(change, editor.mode, context)
}
