//! `lint --fix` and `lint --diff`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::lint::{self, FixedText, LintOptions};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{
    ExpectedFile, FileAt, ReplaceError, ReplaceOptions, SymlinkPolicy, read_bounded,
};

use super::{LintInputs, hook_files};
use crate::context::CommandContext;
use crate::diff;
use crate::error::HooksCommandError;

/// Size limit of a hook file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Fixes all files, and prints each fix on standard error. Returns the errors of files that cannot be fixed.
pub fn write(
    inputs: &LintInputs,
    options: &LintOptions,
    context: &CommandContext,
) -> Vec<HooksCommandError> {
    let mut errors = Vec::new();
    for path in files(inputs, options, &mut errors) {
        errors.extend(rewrite(&path, |text| lint::fix_text(&path, text, options), context).err());
    }
    for path in programs(inputs, options) {
        errors.extend(rewrite(&path, lint::fix_program, context).err());
    }
    errors
}

/// Replaces a file by its fixed text.
fn rewrite(
    path: &Path,
    fix: impl FnOnce(&[u8]) -> FixedText,
    context: &CommandContext,
) -> Result<(), HooksCommandError> {
    let file = match FileAt::open(path, SymlinkPolicy::Follow) {
        Ok(file) => file,
        Err(error @ ReplaceError::ForeignLink { .. }) => return Err(error.into()),
        // The linter reports files that cannot be read.
        Err(_) => return Ok(()),
    };
    let Ok((text, id)) = file.read(MAX_FILE_BYTES) else { return Ok(()) };
    let fixed = fix(&text);
    if fixed.text != text {
        let replace =
            ReplaceOptions { expected: ExpectedFile::Unchanged(id), ..Default::default() };
        file.replace(&fixed.text, &replace)?;
        print_fixes(path, &fixed, context);
    }
    Ok(())
}

/// Writes the fixed text of standard input or of a pipe.
pub fn text(
    path: &Path,
    text: &[u8],
    options: &LintOptions,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let fixed = lint::fix_text(path, text, options);
    context.write(&fixed.text)?;
    print_fixes(path, &fixed, context);
    let left = lint::lint_text(path, &fixed.text, options);
    let found = left.iter().any(|finding| finding.severity > lint::Severity::Note);
    Ok(if found { CliExit::Findings } else { CliExit::Done })
}

/// Writes a diff of the changes that `--fix` would make. The exit code is 1 if there are any.
pub fn diff(
    inputs: &LintInputs,
    options: &LintOptions,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for path in files(inputs, options, &mut errors) {
        if let Ok(text) = read_bounded(&path, MAX_FILE_BYTES) {
            texts.push((path, text));
        }
    }
    texts.extend(inputs.texts.iter().cloned());
    let mut fixes: Vec<_> = texts
        .into_iter()
        .map(|(path, text)| (lint::fix_text(&path, &text, options).text, path, text))
        .collect();
    for path in programs(inputs, options) {
        if let Ok(text) = read_bounded(&path, MAX_FILE_BYTES) {
            fixes.push((lint::fix_program(&text).text, path, text));
        }
    }
    let mut exit = CliExit::Done;
    for (fixed, path, text) in fixes {
        if fixed != text {
            exit = CliExit::Findings;
            diff::write_exact(context, &text, &fixed, &path.to_string_lossy())?;
        }
    }
    context.fail_with(errors)?;
    Ok(exit)
}

fn print_fixes(path: &Path, fixed: &FixedText, context: &CommandContext) {
    for applied in &fixed.applied {
        let line = applied.line.map_or_else(String::new, |line| format!(":{line}"));
        let (path, code) = (path.display(), applied.rule.code);
        context.note(&format!("{path}{line}: {code}: fixed: {}", applied.description));
    }
}

/// Returns the hook files to fix, and adds an error for each directory that cannot be listed.
fn files(
    inputs: &LintInputs,
    options: &LintOptions,
    errors: &mut Vec<HooksCommandError>,
) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let dirs = if inputs.with_dirs { options.dirs.as_slice() } else { &[] };
    for dir in dirs.iter().filter(|dir| dir.is_dir()) {
        match hook_files(dir) {
            Ok(found) => files.extend(found),
            Err(error) => errors.push(error.into()),
        }
    }
    files.extend(inputs.files.iter().cloned());
    files
}

/// Returns the hook programs that [`lint::fix_program`] can fix.
fn programs(inputs: &LintInputs, options: &LintOptions) -> BTreeSet<PathBuf> {
    let report = inputs.lint(options);
    report.findings().filter_map(|finding| finding.program_fix.clone()).collect()
}
