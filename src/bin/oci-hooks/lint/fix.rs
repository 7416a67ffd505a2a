//! `lint --fix` and `lint --diff`.

use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::lint::{self, Fixed, LintOptions};
use oci_hooks::sys::fs::{Expected, FileAt, ReplaceError, ReplaceOptions, Symlinks};

use super::{Inputs, STDIN, hook_files};
use crate::Exit;
use crate::context::Context;
use crate::diff;
use crate::error::Error;

/// Size limit of a hook file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Fixes all files, and prints each fix on standard error.
pub fn write(inputs: &Inputs, options: &LintOptions, context: &mut Context) -> Result<(), Error> {
    for path in files(inputs, options)? {
        let file = match FileAt::open(&path, Symlinks::Follow) {
            Ok(file) => file,
            Err(error @ ReplaceError::ForeignLink { .. }) => return Err(error.into()),
            // The linter reports files that cannot be read.
            Err(_) => continue,
        };
        let Ok((text, id)) = file.read(MAX_FILE_BYTES) else { continue };
        let fixed = lint::fix_text(&path, &text, options);
        if fixed.text == text {
            continue;
        }
        let replace = ReplaceOptions { expected: Expected::Unchanged(id), ..Default::default() };
        file.replace(&fixed.text, &replace)?;
        print_fixes(&path, &fixed, context);
    }
    Ok(())
}

/// Writes the fixed text of standard input.
pub fn stdin(text: &[u8], options: &LintOptions, context: &mut Context) -> Result<Exit, Error> {
    let path = Path::new(STDIN);
    let fixed = lint::fix_text(path, text, options);
    context.write(&fixed.text)?;
    print_fixes(path, &fixed, context);
    let left = lint::lint_text(path, &fixed.text, options);
    let found = left.iter().any(|finding| finding.severity > lint::Severity::Note);
    Ok(if found { Exit::No } else { Exit::Yes })
}

/// Writes a diff of what `--fix` would change. The exit code is 1 if there is a difference.
pub fn diff(inputs: &Inputs, options: &LintOptions, context: &mut Context) -> Result<Exit, Error> {
    let mut texts = Vec::new();
    for path in files(inputs, options)? {
        if let Ok(text) = fs::read(&path) {
            texts.push((path, text));
        }
    }
    texts.extend(inputs.stdin.iter().map(|text| (PathBuf::from(STDIN), text.clone())));
    let mut exit = Exit::Yes;
    for (path, text) in texts {
        let fixed = lint::fix_text(&path, &text, options);
        if fixed.text != text {
            exit = Exit::No;
            diff::write(context, &text, &fixed.text, &path.to_string_lossy())?;
        }
    }
    Ok(exit)
}

fn print_fixes(path: &Path, fixed: &Fixed, context: &Context) {
    for applied in &fixed.applied {
        let line = applied.line.map_or_else(String::new, |line| format!(":{line}"));
        let (path, code) = (path.display(), applied.rule.code);
        context.note(&format!("{path}{line}: {code}: {}", applied.description));
    }
}

/// Returns the hook files to fix.
fn files(inputs: &Inputs, options: &LintOptions) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let dirs = if inputs.with_dirs { options.dirs.as_slice() } else { &[] };
    for dir in dirs.iter().filter(|dir| dir.is_dir()) {
        files.extend(hook_files(dir)?);
    }
    files.extend(inputs.files.iter().cloned());
    Ok(files)
}
