//! `oci-hooks install`, and the output of `install`, `remove`, `disable`, `enable` and `migrate`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::lint::{self, LintOptions, Severity, rules};
use oci_hooks::hooks::manage::{
    ChangeNote, ChangeStep, EditMode, HookChange, HookEditor, HookName, ManageError,
    OverwritePolicy,
};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{HookDefinition, LoadOptions, ParseOptions, PathCheck};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::terminal::escape_control;
use serde::Serialize;

use crate::context::{CommandContext, input_name};
use crate::directories::{self, HookDirectories};
use crate::error::{Diagnostic, HooksCommandError};

/// Validate and lint a hook file, and install it in the last directory that the consumer reads
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks install my-hook.json
  oci-hooks install --name 50-my-hook draft.json
  oci-hooks install --dry-run --hooks-dir ~/hooks.d my-hook.json

Without --name the file keeps its name. It masks files of the same name in earlier directories.")]
pub struct InstallArgs {
    /// Hook file, or - for standard input
    file: PathBuf,

    #[command(flatten)]
    options: InstallOptions,
}

/// Options of commands that install a hook.
#[derive(Debug, Args)]
pub struct InstallOptions {
    /// Name of the hook, with or without .json
    #[arg(long)]
    pub name: Option<OsString>,

    /// Replace an existing hook of the same name
    #[arg(long)]
    force: bool,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,

    /// Accept a hook whose program does not exist; consumers silently skip the hook until it does
    #[arg(long)]
    pub no_path_check: bool,

    /// Accept a hook with lint errors, or one that other engines reject
    #[arg(long)]
    no_lint: bool,
}

pub fn run(args: &InstallArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let name = args.options.name.as_deref().or_else(|| input_name(&args.file));
    let name = name.ok_or_else(|| HooksCommandError::Usage {
        message: "a hook from standard input or a pipe needs a name".to_owned(),
        hint: Some("pass --name NAME".to_owned()),
    })?;
    let name = HookName::new(name)?;
    let text = context.read_hook(&args.file)?;
    args.options.install(&name, &args.file, &text, context)
}

impl InstallOptions {
    /// Installs a text read from `source`, and prints the changes.
    pub fn install(
        &self,
        name: &HookName,
        source: &Path,
        text: &[u8],
        context: &mut CommandContext,
    ) -> Result<CliExit, HooksCommandError> {
        let directories = context.directories()?;
        self.lint(source, text, directories.configured.is_some(), context)?;
        let mut editor = editor(&directories, context, self.dry_run);
        if self.no_path_check {
            editor.options.path_check = PathCheck::Skip;
        }
        let overwrite = if self.force { OverwritePolicy::Replace } else { OverwritePolicy::Refuse };
        let change = editor.install(name, text, overwrite).map_err(|error| match error {
            // The error is in the source, not in the destination.
            ManageError::Invalid(mut problem) => {
                problem.path = source.to_owned();
                ManageError::Invalid(problem)
            }
            error => error,
        });
        let change = change
            .map_err(|error| directories::explain_error(error, &directories, &context.consumer))?;
        let exit = report(change, editor.mode, context)?;
        directories::note_change(&directories, context)?;
        Ok(exit)
    }

    /// Returns an option that applies to the installation only, if it is given.
    pub fn of_installation(&self) -> Option<&'static str> {
        let options =
            [("--name", self.name.is_some()), ("--force", self.force), ("--dry-run", self.dry_run)];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// Rejects a hook with lint errors, and prints lint warnings, without --no-lint. If `is_shared`
    /// is set, other engines may read the file.
    ///
    /// A text that the loader rejects passes: the loader reports the error.
    pub fn lint(
        &self,
        source: &Path,
        text: &[u8],
        is_shared: bool,
        context: &CommandContext,
    ) -> Result<(), HooksCommandError> {
        if self.no_lint {
            return Ok(());
        }
        let mut options = LintOptions::for_consumer(&context.consumer);
        if !self.no_path_check {
            options.files = Some(TrustOptions::of_process());
        }
        let load = LoadOptions::for_consumer(&context.consumer);
        let schema = ParseOptions::new(&load.extension_stages).with_path_check(PathCheck::Skip);
        if HookDefinition::parse(text, schema).is_err() {
            return Ok(());
        }
        for finding in lint::lint_text(source, text, &options) {
            let mut diagnostic = Diagnostic::of_finding(&finding);
            // Other engines read the configured directories, and one that rejects the file starts no container.
            if finding.rule == &rules::STAGE_NOT_PORTABLE && is_shared {
                diagnostic.hint = Some(REJECTED_BY_OTHERS.to_owned());
                return Err(HooksCommandError::Lint(Box::new(diagnostic)));
            }
            match finding.severity {
                Severity::Error if finding.rule.code != MISSING_PROGRAM => {
                    return Err(HooksCommandError::Lint(Box::new(diagnostic)));
                }
                Severity::Warning => context.warn(&diagnostic),
                _ => {}
            }
        }
        Ok(())
    }
}

const REJECTED_BY_OTHERS: &str = "if one of these engines runs here, install the file with --hooks-dir into a directory \
    that only podman reads; otherwise pass --no-lint";

/// The rule about missing programs, which the loader reports as well.
const MISSING_PROGRAM: &str = "OH017";

fn editor(directories: &HookDirectories, context: &CommandContext, dry_run: bool) -> HookEditor {
    let mode = if dry_run { EditMode::Plan } else { EditMode::Apply };
    HookEditor::new(context.load_options(directories), mode)
}

/// Changes a hook by its name, and prints the changes.
pub fn change(
    name: &OsStr,
    dry_run: bool,
    context: &mut CommandContext,
    change: impl FnOnce(&HookEditor, &HookName) -> Result<HookChange, ManageError>,
) -> Result<CliExit, HooksCommandError> {
    let name = HookName::new(name)?;
    let directories = context.directories()?;
    let editor = editor(&directories, context, dry_run);
    let change = change(&editor, &name)
        .map_err(|error| directories::explain_error(error, &directories, &context.consumer))?;
    let exit = report(change, editor.mode, context)?;
    directories::note_change(&directories, context)?;
    Ok(exit)
}

/// A change of hook files, as printed by `--format json`.
#[derive(Serialize)]
pub struct ChangeJson {
    dry_run: bool,
    #[serde(flatten)]
    change: HookChange,
}

impl ChangeJson {
    pub fn new(change: HookChange, mode: EditMode) -> Self {
        ChangeJson { dry_run: mode == EditMode::Plan, change }
    }
}

/// Prints the changes, and returns the exit status.
fn report(
    change: HookChange,
    mode: EditMode,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    if context.is_json() {
        context.json(&ChangeJson::new(change, mode))?;
    } else {
        write(&change, mode, context)?;
    }
    Ok(CliExit::Done)
}

/// Writes a line for each step and each note. A note that a file masks another is part of the step's line.
pub fn write(
    change: &HookChange,
    mode: EditMode,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    for step in &change.steps {
        let mut line = match mode {
            EditMode::Plan => format!("would {step}"),
            EditMode::Apply => step.past_tense(),
        };
        if let ChangeStep::Write { path, .. } | ChangeStep::Restore { path, .. } = step
            && let Some(ChangeNote::Masks { hidden, .. }) =
                change.notes.iter().find(|n| masks(n, path))
        {
            line += &format!(", which masks {}", hidden.display());
        }
        context.line(escape_control(line.as_bytes()))?;
    }
    for note in change.notes.iter().filter(|note| !matches!(note, ChangeNote::Masks { .. })) {
        context.line(escape_control(note.to_string().as_bytes()))?;
    }
    Ok(())
}

fn masks(note: &ChangeNote, by: &Path) -> bool {
    matches!(note, ChangeNote::Masks { path, .. } if path == by)
}
