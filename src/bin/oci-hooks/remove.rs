//! `oci-hooks remove`, `disable` and `enable`, and the names of hooks for shell completion.
//!
//! Completion does not know the other options on the command line: it uses the directories that podman reads.

use std::ffi::OsString;
use std::fs;

use clap::Args;
use clap_complete::ArgValueCandidates;
use clap_complete::engine::CompletionCandidate;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::manage::{HookEditor, ManageError};
use oci_hooks::hooks::{HookError, LoadProblem, PathCheck};
use oci_hooks_cli::completions::candidates;
use oci_hooks_cli::exit::CliExit;

use crate::context::CommandContext;
use crate::directories::HookDirectories;
use crate::error::{Diagnostic, HooksCommandError};
use crate::install::change;

/// Remove a hook file from the last directory that the consumer reads
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks remove my-hook

Hooks in earlier directories belong to packages: disable them instead.")]
pub struct RemoveArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(complete_active))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub fn remove(
    args: &RemoveArgs,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    change(&args.name, args.dry_run, context, HookEditor::remove)
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
    #[arg(add = ArgValueCandidates::new(complete_active))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

pub fn disable(
    args: &DisableArgs,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    change(&args.name, args.dry_run, context, HookEditor::disable)
}

/// Enable a hook that was disabled
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks enable oci-nvidia-hook

The hook file is restored byte for byte. A file that the consumer rejects stays disabled.")]
pub struct EnableArgs {
    /// Name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(complete_disabled))]
    name: OsString,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,

    /// Enable a hook whose program does not exist; consumers silently skip the hook until it does
    #[arg(long)]
    no_path_check: bool,
}

pub fn enable(
    args: &EnableArgs,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let changed = change(&args.name, args.dry_run, context, |editor, name| {
        let mut editor = editor.clone();
        if args.no_path_check {
            editor.options.path_check = PathCheck::Skip;
        }
        editor.enable(name)
    });
    changed.map_err(|error| match error {
        HooksCommandError::Manage(ManageError::Invalid(problem)) => {
            HooksCommandError::Lint(Box::new(explain_invalid(&problem)))
        }
        error => error,
    })
}

/// Returns the error about an invalid file, which is not enabled.
fn explain_invalid(problem: &LoadProblem) -> Diagnostic {
    let mut diagnostic = Diagnostic::of_problem(problem);
    diagnostic.message = format!("cannot be enabled: {}", diagnostic.message);
    let hint = match (&problem.source, diagnostic.hint.take()) {
        (HookError::PathMissing { .. }, _) => {
            "install the program, correct hook.path, or pass --no-path-check".to_owned()
        }
        (_, Some(hint)) => format!("correct the file: {hint}"),
        (_, None) => "correct the file".to_owned(),
    };
    diagnostic.with_hint(hint)
}

/// Returns the names of all hook files in podman's directories, without `.json`.
pub fn complete_active() -> Vec<CompletionCandidate> {
    candidates(file_names(".json"))
}

/// Returns the names of disabled hook files in podman's directories, without `.json.disabled`.
fn complete_disabled() -> Vec<CompletionCandidate> {
    candidates(file_names(".json.disabled"))
}

/// Returns the names of the files in podman's directories that end in `end`, without that suffix.
fn file_names(end: &str) -> impl Iterator<Item = String> {
    let configured = HookDirectories::read_configured(&PODMAN).map(|directories| directories.dirs);
    let dirs = configured.unwrap_or_default().into_iter();
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(move |name| Some(name.strip_suffix(end)?.to_owned()))
}
