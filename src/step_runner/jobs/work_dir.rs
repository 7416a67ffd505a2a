//! The directory that a job works in.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Directories that were made, the outermost first. They are removed again, if nobody has put
/// anything there, unless they are kept.
#[derive(Debug, Default)]
pub(super) struct Made {
    paths: Vec<PathBuf>,
}

impl Made {
    /// Makes a directory and those above it that are missing; returns at which of them it failed.
    pub(super) fn make(path: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut made = Made::default();
        let mut missing = Vec::new();
        for path in path.ancestors() {
            match fs::metadata(path) {
                Ok(meta) if meta.is_dir() => break,
                Ok(_) => return Err((path.to_path_buf(), io::ErrorKind::NotADirectory.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(path),
                // One of those above it says which is none.
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        for path in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => made.paths.push(path.to_path_buf()),
                // Another job has made it.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        Ok(made)
    }

    pub(super) fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.paths.iter().rev() {
            // Somebody may use it already.
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_was_made_is_removed_unless_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let made = Made::make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(made);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        Made::make(&path).unwrap().keep();
        drop(Made::make(&path).unwrap());
        assert!(path.is_dir());
    }

    #[test]
    fn a_file_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("x")] {
            let (at, error) = Made::make(&path).unwrap_err();
            assert_eq!(
                (at, error.kind()),
                (file.clone(), io::ErrorKind::NotADirectory),
                "{path:?}"
            );
        }
    }
}
