//! The files of the host that a runner may name in a request, opened once.
//!
//! A runner that is root may name any; what is in its work directory is opened strictly beneath that
//! all the same, because jobs can write there. A runner that called by sudo may name what is beneath
//! the directories that root recorded for it, and its user's access counts, not root's.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::caller::Caller;
use crate::sys::fs::PathError;
use crate::sys::host_file::{HostFile, HostRoot};

/// Where a runner's files are, and with whose access they are opened.
#[derive(Clone, Debug)]
pub struct RunnerFiles {
    roots: Vec<HostRoot>,
    caller: Option<Caller>,
}

/// Why a file that a request names is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerFilesError {
    /// It cannot be opened, or not by this user.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The request leads out of the directories that root recorded for the runner.
    #[error(
        "{} is in no directory that is recorded for runners which call by sudo: if it is the \
         runner's, run `container-hook install --sudo --runner-dir DIR` as root", path.display()
    )]
    NotRecorded {
        /// The path of the request.
        path: PathBuf,
    },
}

impl RunnerFiles {
    /// Returns the files of a runner that has this process's own rights.
    pub fn of_root(work: &Path) -> Result<Self, PathError> {
        Ok(RunnerFiles { roots: vec![HostRoot::open_trusted(work)?], caller: None })
    }

    /// Returns the files of a runner that called by sudo: those beneath recorded directories.
    ///
    /// Of the directories, those that are missing or belong to somebody else are left out: they may
    /// be another runner's.
    pub fn of_caller<'p>(recorded: impl IntoIterator<Item = &'p Path>, caller: Caller) -> Self {
        let roots = recorded.into_iter().filter_map(|dir| HostRoot::open_as(dir, &caller).ok());
        RunnerFiles { roots: roots.collect(), caller: Some(caller) }
    }

    /// Returns the same with directories outside of those, which may be root's too: tool caches.
    ///
    /// Those that are missing or belong to somebody else are left out. For a runner that has this
    /// process's own rights nothing changes.
    #[must_use]
    pub fn with_tool_directories<'p>(mut self, dirs: impl IntoIterator<Item = &'p Path>) -> Self {
        if let Some(caller) = &self.caller {
            let open = |dir| HostRoot::open_shared_as(dir, caller).ok();
            self.roots.extend(dirs.into_iter().filter_map(open));
        }
        self
    }

    /// Returns the user with whose access files are opened, if that is not this process's own.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Opens a file or directory.
    pub fn open(&self, path: &Path) -> Result<HostFile, RunnerFilesError> {
        match self.find(path)? {
            Some((root, relative)) => Ok(root.open(relative)?),
            None => Ok(HostFile::open_trusted(path)?),
        }
    }

    /// Opens a file or directory, or makes a directory for this user if there is nothing.
    pub fn open_or_make_dir(
        &self,
        path: &Path,
        owner: (u32, u32),
    ) -> Result<HostFile, RunnerFilesError> {
        let is_missing = |error: &PathError| error.source.kind() == io::ErrorKind::NotFound;
        if let Some((root, relative)) = self.find(path)? {
            return Ok(root.open_or_make_dir(relative, owner)?);
        }
        for above in path.ancestors() {
            match HostRoot::open_trusted(above) {
                Err(error) if is_missing(&error) && above != Path::new("/") => {}
                // Not only directories may be mounted.
                Err(error) if above == path => {
                    return HostFile::open_trusted(path).map_err(|_| error.into());
                }
                root => {
                    let missing = path.strip_prefix(above).expect("it is above the path");
                    return Ok(root?.open_or_make_dir(missing, owner)?);
                }
            }
        }
        Ok(HostFile::open_trusted(path)?)
    }

    /// Opens a file to read it, or a directory to list it.
    pub fn read(&self, path: &Path) -> Result<File, RunnerFilesError> {
        match self.find(path)? {
            Some((root, relative)) => Ok(root.read(relative)?),
            None => Ok(HostFile::open_trusted(path)?.reopen()?),
        }
    }

    /// Opens a directory, to have names looked up beneath it alone.
    pub fn directory(&self, path: &Path) -> Result<HostRoot, RunnerFilesError> {
        match self.find(path)? {
            Some((root, relative)) => Ok(root.subdirectory(relative)?),
            None => Ok(HostRoot::open_trusted(path)?),
        }
    }

    /// Opens a file to write it, made if it is missing. Nothing of it is changed yet.
    pub fn write(&self, path: &Path) -> Result<File, RunnerFilesError> {
        if let Some((root, relative)) = self.find(path)? {
            return Ok(root.write(relative)?);
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(PathError::new("write", path, io::ErrorKind::IsADirectory).into());
        };
        let dir = HostRoot::open_trusted(dir)
            .map_err(|error| PathError::new("open", path, error.source))?;
        Ok(dir.write(Path::new(name))?)
    }

    /// Returns the directory that a path is beneath by its text, and the rest; none for a path
    /// elsewhere that root may name.
    fn find<'p>(&self, path: &'p Path) -> Result<Option<(&HostRoot, &'p Path)>, RunnerFilesError> {
        let beneath = |root| Some((root, HostRoot::relative(root, path)?));
        let found = self.roots.iter().filter_map(beneath);
        // Of two, one in the other, the one with the shorter rest.
        match found.min_by_key(|(_, relative)| relative.components().count()) {
            None if self.caller.is_some() => {
                Err(RunnerFilesError::NotRecorded { path: path.to_owned() })
            }
            found => Ok(found),
        }
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
        let files = RunnerFiles::of_root(&work).unwrap();
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

    #[test]
    fn who_calls_by_sudo_may_name_what_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for name in ["runner/_work", "other"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let (uid, gid) = own_ids();
        let caller = Caller { uid, gid, groups: vec![gid] };
        let recorded = [dir.join("runner"), dir.join("missing")];
        let files = RunnerFiles::of_caller(recorded.iter().map(PathBuf::as_path), caller);
        for path in ["other", "missing", "", "runner-2"] {
            let error = files.open(&dir.join(path)).unwrap_err();
            assert!(matches!(error, RunnerFilesError::NotRecorded { .. }), "{path}: {error}");
        }
        if uid == 0 {
            files.open(&dir.join("runner/_work")).unwrap();
            assert!(files.open(&dir.join("runner/../other")).is_err());
        }
    }
}
