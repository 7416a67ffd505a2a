//! The files of the host that a runner may name in a request, opened once.
//!
//! A runner may name any file that its user can open. Jobs can write in the work directory: what is beneath it
//! is opened strictly beneath it.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::sys::fs::PathError;
use crate::sys::host_file::{HostFile, HostRoot};

/// The files that a runner names.
#[derive(Clone, Debug)]
pub struct RunnerFiles {
    work: HostRoot,
}

impl RunnerFiles {
    /// Returns the files of the runner with this work directory.
    pub fn new(work: &Path) -> Result<Self, PathError> {
        Ok(RunnerFiles { work: HostRoot::open_trusted(work)? })
    }

    /// Opens a file or directory.
    pub fn open(&self, path: &Path) -> Result<HostFile, PathError> {
        match self.beneath_work(path) {
            Some(relative) => self.work.open(relative),
            None => HostFile::open_trusted(path),
        }
    }

    /// Opens a file or directory, or makes a directory for this user if there is nothing.
    pub fn open_or_make_dir(&self, path: &Path, owner: (u32, u32)) -> Result<HostFile, PathError> {
        let is_missing = |error: &PathError| error.source.kind() == io::ErrorKind::NotFound;
        if let Some(relative) = self.beneath_work(path) {
            return self.work.open_or_make_dir(relative, owner);
        }
        for above in path.ancestors() {
            match HostRoot::open_trusted(above) {
                Err(error) if is_missing(&error) && above != Path::new("/") => {}
                // Not only directories may be mounted.
                Err(error) if above == path => {
                    return HostFile::open_trusted(path).map_err(|_| error);
                }
                root => {
                    let missing = path.strip_prefix(above).expect("it is above the path");
                    return root?.open_or_make_dir(missing, owner);
                }
            }
        }
        HostFile::open_trusted(path)
    }

    /// Opens a file to read it, or a directory to list it.
    pub fn read(&self, path: &Path) -> Result<File, PathError> {
        match self.beneath_work(path) {
            Some(relative) => self.work.read(relative),
            None => HostFile::open_trusted(path)?.reopen(),
        }
    }

    /// Opens a directory, to have names looked up beneath it alone.
    pub fn directory(&self, path: &Path) -> Result<HostRoot, PathError> {
        match self.beneath_work(path) {
            Some(relative) => self.work.subdirectory(relative),
            None => HostRoot::open_trusted(path),
        }
    }

    /// Opens a file to write it, made if it is missing. Nothing of it is changed yet.
    pub fn write(&self, path: &Path) -> Result<File, PathError> {
        if let Some(relative) = self.beneath_work(path) {
            return self.work.write(relative);
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(PathError::new("write", path, io::ErrorKind::IsADirectory));
        };
        let dir = HostRoot::open_trusted(dir)
            .map_err(|error| PathError::new("open", path, error.source))?;
        dir.write(Path::new(name))
    }

    /// Returns the rest of a path that is beneath the work directory by its text.
    fn beneath_work<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        self.work.relative(path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::caller::own_ids;

    #[test]
    fn in_the_work_directory_no_link_is_followed_and_elsewhere_root_knows() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let work = dir.join("_work");
        fs::create_dir_all(work.join("_temp")).unwrap();
        fs::create_dir(dir.join("tools")).unwrap();
        symlink(&dir, work.join("link")).unwrap();
        symlink(dir.join("tools"), dir.join("current")).unwrap();
        let files = RunnerFiles::new(&work).unwrap();
        files.open(&work.join("_temp")).unwrap();
        files.open(&dir.join("current")).unwrap();
        for path in ["link", "link/tools", "../tools"] {
            files.open(&work.join(path)).unwrap_err();
            files.open_or_make_dir(&work.join(path), own_ids()).unwrap_err();
        }
        for path in [work.join("a/b"), dir.join("current/c/d"), work.clone()] {
            assert!(files.open_or_make_dir(&path, own_ids()).unwrap().has_name(&path));
        }
        fs::write(dir.join("file"), "").unwrap();
        assert!(!files.open_or_make_dir(&dir.join("file"), own_ids()).unwrap().is_dir());
        files.write(&work.join("link")).unwrap_err();
        files.write(&work.join("_temp/answer")).unwrap();
    }
}
