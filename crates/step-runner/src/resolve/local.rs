//! Step files on this host.

use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::{ReadError, read_bounded};

use super::super::document::{MAX_BYTES, STEP_FILE_NAMES, StepFile};
use super::context::LoadedStep;
use super::error::ResolveError;

/// Returns the directory of a local reference, whose `segments` are relative to `base` or start
/// with `/`. Symlinks are not resolved.
pub fn directory(base: &Path, segments: &[String]) -> PathBuf {
    let mut path = base.to_path_buf();
    for segment in segments {
        match segment.as_str() {
            "." => {}
            ".." => {
                // Lexical, as in a URL: symlinks are not resolved.
                if !path.pop() {
                    path.push("..");
                }
            }
            segment => path.push(segment),
        }
    }
    path
}

/// Loads the step file in a directory. Without a file name, tries `step.yml`, then `func.yml`.
pub fn load(dir: PathBuf, filename: Option<&str>) -> Result<LoadedStep, ResolveError> {
    find(dir, filename, read)
}

/// Loads the step file in a directory of `tree`, a fetched repository or image. A path with `..` is
/// an error.
pub fn load_fetched(
    tree: &Path,
    segments: &[String],
    filename: Option<&str>,
) -> Result<LoadedStep, ResolveError> {
    if segments.iter().any(|segment| segment == "..") {
        return Err(ResolveError::Outside(segments.iter().collect()));
    }
    load_beneath(tree, tree, segments, filename)
}

/// Loads the step file in a directory of `tree`, a fetched repository or image. `segments` are
/// relative to `base`, a directory of `tree`. A path or symlink that leads out of `tree` is an
/// error.
pub fn load_beneath(
    tree: &Path,
    base: &Path,
    segments: &[String],
    filename: Option<&str>,
) -> Result<LoadedStep, ResolveError> {
    let outside = |path: &Path| {
        let path = path.strip_prefix(tree).unwrap_or(path);
        ResolveError::Outside(path.to_owned())
    };
    let real = |path: &Path| {
        fs::canonicalize(path).map_err(|error| ResolveError::Read { path: path.to_owned(), error })
    };
    let top = real(tree)?;
    let dir = directory(base, segments);
    if !dir.starts_with(tree) || !real(&dir)?.starts_with(&top) {
        return Err(ResolveError::Outside(segments.iter().collect()));
    }
    let read = |path: &Path| {
        if real(path)?.starts_with(&top) { read(path) } else { Err(outside(path)) }
    };
    Ok(LoadedStep { tree: Some(tree.to_owned()), ..find(dir, filename, read)? })
}

fn find(
    dir: PathBuf,
    filename: Option<&str>,
    read: impl Fn(&Path) -> Result<String, ResolveError>,
) -> Result<LoadedStep, ResolveError> {
    let names: &[&str] = match &filename {
        Some(name) => &[name],
        None => &STEP_FILE_NAMES,
    };
    let mut first_error = None;
    for name in names {
        let path = dir.join(name);
        match read(&path) {
            Ok(text) => {
                let file = StepFile::parse(&path.to_string_lossy(), &text)
                    .map_err(|error| ResolveError::Document { path, error: Box::new(error) })?;
                return Ok(LoadedStep { file, dir, tree: None, accepts_secrets: false });
            }
            Err(error) => {
                let is_missing = matches!(
                    &error,
                    ResolveError::Read { error, .. } if error.kind() == io::ErrorKind::NotFound
                );
                if !is_missing {
                    return Err(error);
                }
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.expect("there is at least one name"))
}

/// Reads a step file, which a job has named or created. Fails without blocking if it is not a
/// regular file.
fn read(path: &Path) -> Result<String, ResolveError> {
    let wrong = |error| ResolveError::Read { path: path.to_path_buf(), error };
    let bytes = read_bounded(path, MAX_BYTES).map_err(|error| match error {
        ReadError::TooLarge { path, limit_bytes: limit, .. } => {
            ResolveError::TooLarge { path, limit }
        }
        ReadError::Path(error) if error.source.kind() != io::ErrorKind::IsADirectory => {
            wrong(error.source)
        }
        ReadError::NotAFile { kind, .. } => {
            wrong(io::Error::other(format!("it is a {kind}, not a regular file")))
        }
        _ => wrong(io::Error::other("not a regular file")),
    })?;
    String::from_utf8(bytes).map_err(|_| {
        wrong(io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
    })
}
