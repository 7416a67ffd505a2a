//! `oci-hooks install`, and printing what it, `remove`, `disable`, `enable` and `migrate` changed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::lint::{self, FileChecks, LintOptions, Severity};
use oci_hooks::hooks::manage::{
    Change, Editor, HookName, ManageError, Mode, Note, Overwrite, Step,
};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{Definition, LoadOptions, PathCheck, SchemaOptions};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::directories::{self, Directories};
use crate::error::{Diagnostic, Error};

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

    /// Accept a hook with lint errors
    #[arg(long)]
    no_lint: bool,
}

pub fn run(args: &InstallArgs, context: &mut Context) -> Result<Exit, Error> {
    let name = match (&args.options.name, args.file.file_name()) {
        (Some(name), _) => name.as_os_str(),
        (None, Some(name)) if args.file != OsStr::new("-") => name,
        _ => {
            return Err(Error::Usage {
                message: "a hook from standard input needs a name".to_owned(),
                hint: Some("pass --name NAME".to_owned()),
            });
        }
    };
    let name = HookName::new(name)?;
    let text = context.read_hook(&args.file)?;
    args.options.install(&name, &args.file, &text, context)
}

impl InstallOptions {
    /// Installs a text that came from `source`, and prints what was done.
    pub fn install(
        &self,
        name: &HookName,
        source: &Path,
        text: &[u8],
        context: &mut Context,
    ) -> Result<Exit, Error> {
        if !self.no_lint {
            self.lint(source, text, context)?;
        }
        let directories = context.directories()?;
        let mut editor = editor(&directories, context, self.dry_run);
        if self.no_path_check {
            editor.options.path_check = PathCheck::Skip;
        }
        let overwrite = if self.force { Overwrite::Replace } else { Overwrite::Refuse };
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
}

impl InstallOptions {
    /// Rejects a hook with lint errors, and prints lint warnings.
    ///
    /// A text that the loader rejects passes: the loader reports it.
    fn lint(&self, source: &Path, text: &[u8], context: &Context) -> Result<(), Error> {
        let mut options = LintOptions::for_consumer(&context.consumer);
        if !self.no_path_check {
            options.files = FileChecks::Trust(TrustOptions::of_process());
        }
        let load = LoadOptions::for_consumer(&context.consumer);
        let schema = SchemaOptions::new(&load.extension_stages).with_path_check(PathCheck::Skip);
        if Definition::parse(text, schema).is_err() {
            return Ok(());
        }
        for finding in lint::lint_text(source, text, &options) {
            let diagnostic = Diagnostic::of_finding(&finding);
            match finding.severity {
                Severity::Error if finding.rule.code != MISSING_PROGRAM => {
                    return Err(Error::Lint(Box::new(diagnostic)));
                }
                Severity::Warning => context.warn(&diagnostic),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The rule about missing programs, which the loader reports as well.
const MISSING_PROGRAM: &str = "OH017";

/// Returns the editor of the hook directories.
fn editor(directories: &Directories, context: &Context, dry_run: bool) -> Editor {
    let mode = if dry_run { Mode::Plan } else { Mode::Apply };
    Editor::new(context.load_options(directories), mode)
}

/// Makes a change to a hook by its name, and prints what was done.
pub fn change(
    name: &OsStr,
    dry_run: bool,
    context: &mut Context,
    change: impl FnOnce(&Editor, &HookName) -> Result<Change, ManageError>,
) -> Result<Exit, Error> {
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
    change: Change,
}

impl ChangeJson {
    pub fn new(change: Change, mode: Mode) -> Self {
        ChangeJson { dry_run: mode == Mode::Plan, change }
    }
}

/// Prints what was done, and ends the command.
fn report(change: Change, mode: Mode, context: &mut Context) -> Result<Exit, Error> {
    if context.is_json() {
        context.json(&ChangeJson::new(change, mode))?;
    } else {
        write(&change, mode, context)?;
    }
    Ok(Exit::Yes)
}

/// Writes a line for each step, and one for each note that does not belong to a step.
pub fn write(change: &Change, mode: Mode, context: &mut Context) -> Result<(), Error> {
    for step in &change.steps {
        let mut line = match mode {
            Mode::Plan => format!("would {step}"),
            Mode::Apply => step.done(),
        };
        if let Step::Write { path, .. } | Step::Restore { path, .. } = step
            && let Some(Note::Masks { hidden, .. }) = change.notes.iter().find(|n| masks(n, path))
        {
            line += &format!(", which masks {}", hidden.display());
        }
        context.line(line)?;
    }
    for note in change.notes.iter().filter(|note| !matches!(note, Note::Masks { .. })) {
        context.line(note.to_string())?;
    }
    Ok(())
}

fn masks(note: &Note, by: &Path) -> bool {
    matches!(note, Note::Masks { path, .. } if path == by)
}
