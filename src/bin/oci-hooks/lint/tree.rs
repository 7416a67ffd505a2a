//! `lint --recursive`: subdirectories with hook files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::lint::{self, LintOptions, Report};
use oci_hooks::sys::fs::PathError;
use walkdir::{DirEntry, WalkDir};

/// Returns the subdirectories that contain `*.json` files. Hidden ones are skipped.
pub(super) fn directories(top: &Path) -> Result<Vec<PathBuf>, PathError> {
    let is_hidden = |entry: &DirEntry| entry.file_name().as_bytes().starts_with(b".");
    let tree = WalkDir::new(top).min_depth(1).sort_by_file_name().into_iter();
    let mut found = Vec::new();
    for entry in tree.filter_entry(|entry| !is_hidden(entry)) {
        let entry = entry.map_err(|error| at(error, top))?;
        if entry.file_type().is_dir() && !hook_files(entry.path())?.is_empty() {
            found.push(entry.into_path());
        }
    }
    Ok(found)
}

/// Returns the `*.json` files of a directory.
pub(super) fn hook_files(dir: &Path) -> Result<Vec<PathBuf>, PathError> {
    let mut files = Vec::new();
    for entry in WalkDir::new(dir).min_depth(1).max_depth(1).sort_by_file_name() {
        let entry = entry.map_err(|error| at(error, dir))?;
        if !entry.file_type().is_dir() && entry.file_name().as_bytes().ends_with(b".json") {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// Lints each directory of the options on its own.
pub(super) fn lint(options: &LintOptions) -> Report {
    let mut report = Report::default();
    for dir in &options.dirs {
        let mut options = options.clone();
        options.dirs = vec![dir.clone()];
        let alone = lint::lint_dirs(&options);
        report.files.extend(alone.files);
        report.hook_files += alone.hook_files;
    }
    report
}

fn at(error: walkdir::Error, dir: &Path) -> PathError {
    let path = error.path().unwrap_or(dir).to_owned();
    let source = error.into_io_error().unwrap_or_else(|| rustix::io::Errno::LOOP.into());
    PathError { action: "list", path, source }
}
