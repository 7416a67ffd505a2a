//! The working directory of a job.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Directories that were created, the outermost first. On drop those that are empty are removed, unless
/// they are kept.
#[derive(Debug, Default)]
pub(super) struct CreatedDirs {
    paths: Vec<PathBuf>,
}

impl CreatedDirs {
    /// Creates a directory and its missing parents. The error has the path at which it failed.
    pub(super) fn make(path: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut created = CreatedDirs::default();
        let mut missing = Vec::new();
        for path in path.ancestors() {
            match fs::metadata(path) {
                Ok(meta) if meta.is_dir() => break,
                Ok(_) => return Err((path.to_path_buf(), io::ErrorKind::NotADirectory.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(path),
                // A parent is not a directory: found further up.
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        for path in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => created.paths.push(path.to_path_buf()),
                // Another job has created it.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        Ok(created)
    }

    /// Creates them as [`make`](Self::make) does, on a thread that is left alone if it takes longer: what it
    /// creates then is removed.
    pub(super) fn make_within(path: &Path, limit: Duration) -> Result<Self, (PathBuf, io::Error)> {
        let (send, receive) = mpsc::channel();
        let theirs = path.to_path_buf();
        let make = move || {
            // Who waits may be gone.
            let _ = send.send(Self::make(&theirs));
        };
        let start = thread::Builder::new().name("work-dir".to_owned()).spawn(make);
        start.map_err(|error| (path.to_path_buf(), error))?;
        let made = receive.recv_timeout(limit);
        made.unwrap_or_else(|_| Err((path.to_path_buf(), io::ErrorKind::TimedOut.into())))
    }

    pub(super) fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for CreatedDirs {
    fn drop(&mut self) {
        for path in self.paths.iter().rev() {
            // Another job may use it already.
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
        let created = CreatedDirs::make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(created);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        CreatedDirs::make(&path).unwrap().keep();
        drop(CreatedDirs::make(&path).unwrap());
        assert!(path.is_dir());
    }

    #[test]
    fn a_file_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("x")] {
            let (at, error) = CreatedDirs::make(&path).unwrap_err();
            assert_eq!(
                (at, error.kind()),
                (file.clone(), io::ErrorKind::NotADirectory),
                "{path:?}"
            );
        }
    }
}
