//! `oci-hooks remove`, `disable` and `enable`, and the names of hooks for shells that complete them.
//!
//! Options that stand beside them on the command line are not known here: they are the names in the
//! directories that podman reads.

use std::ffi::OsString;
use std::fs;

use clap::Args;
use clap_complete::ArgValueCandidates;
use clap_complete::engine::CompletionCandidate;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::manage::Editor;
use oci_hooks::program::completions::candidates;

use crate::Exit;
use crate::context::Context;
use crate::directories::Directories;
use crate::error::Error;
use crate::install::change;

/// Remove a hook file from the last directory that the consumer reads
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks remove my-hook

Hooks in earlier directories belong to packages: disable them instead.")]
pub struct RemoveArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(active))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub fn remove(args: &RemoveArgs, context: &mut Context) -> Result<Exit, Error> {
    change(&args.name, args.dry_run, context, Editor::remove)
}

/// Disable a hook for all containers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks disable oci-nvidia-hook
  oci-hooks disable --dry-run oci-nvidia-hook

A hook in an earlier directory is masked by a file of the same name that never matches. One in the
last directory is renamed to NAME.json.disabled, which no consumer reads.")]
pub struct DisableArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(active))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub fn disable(args: &DisableArgs, context: &mut Context) -> Result<Exit, Error> {
    change(&args.name, args.dry_run, context, Editor::disable)
}

/// Enable a hook that was disabled
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks enable oci-nvidia-hook

The hook file is restored byte for byte.")]
pub struct EnableArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(disabled))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub fn enable(args: &EnableArgs, context: &mut Context) -> Result<Exit, Error> {
    change(&args.name, args.dry_run, context, Editor::enable)
}

/// Returns the names of hook files that are in force.
pub fn active() -> Vec<CompletionCandidate> {
    candidates(file_names(".json"))
}

/// Returns the names of hook files that are disabled.
fn disabled() -> Vec<CompletionCandidate> {
    candidates(file_names(".json.disabled"))
}

/// Returns the names of files with this end, without it.
fn file_names(end: &str) -> impl Iterator<Item = String> {
    let configured = Directories::configured(&PODMAN).map(|directories| directories.dirs);
    let dirs = configured.unwrap_or_default().into_iter();
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(move |name| Some(name.strip_suffix(end)?.to_owned()))
}
