//! Files of the host that a runner may name in a request.
//!
//! A runner may name any file that its user can open. Jobs can write in the work directory, so paths in it
//! are opened strictly beneath it, without following symbolic links. The links to the runner's action cache
//! are an exception: they are resolved beneath the cache directory that the runner's environment names,
//! whatever target a job gives them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::PathError;
use oci_hooks_host::host_file::{HostFile, HostRoot};

/// Opens the files that a runner names.
#[derive(Clone, Debug)]
pub struct RunnerFiles {
    work: HostRoot,
    actions: Option<ActionCache>,
}

/// The directory with unpacked actions to which a runner links the actions of its jobs.
#[derive(Clone, Debug)]
pub struct ActionCache {
    /// Path from the runner's environment; the targets of the links begin with it.
    pub path: PathBuf,
    root: HostRoot,
}

impl ActionCache {
    /// Returns the open directory.
    pub fn dir(&self) -> &HostFile {
        self.root.dir()
    }
}

/// Directory of actions in the work directory.
const ACTIONS: &str = "_actions";

impl RunnerFiles {
    /// Returns the files of the runner with this work directory.
    pub fn new(work: &Path) -> Result<Self, PathError> {
        Ok(RunnerFiles { work: HostRoot::open_trusted(work)?, actions: None })
    }

    /// Adds the cache directory to which the runner links actions. Without access to the directory, the
    /// runner downloads actions instead. A directory in the work directory is ignored, because jobs can
    /// replace it.
    pub fn with_actions(mut self, path: &Path) -> Result<Self, PathError> {
        if self.strip_work_dir(path).is_some() {
            return Ok(self);
        }
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        let root = match self.directory(path) {
            Ok(root) => Some(root),
            Err(error) => match error.source.kind() {
                NotADirectory | NotFound | PermissionDenied => None,
                _ => return Err(error),
            },
        };
        self.actions = root.map(|root| ActionCache { path: path.to_owned(), root });
        Ok(self)
    }

    /// Returns the cache directory to which the runner links actions.
    pub fn actions(&self) -> Option<&ActionCache> {
        self.actions.as_ref()
    }

    /// Opens a file or directory.
    pub fn open(&self, path: &Path) -> Result<HostFile, PathError> {
        match self.strip_work_dir(path) {
            Some(relative) => self.work.open(relative),
            None => HostFile::open_trusted(path),
        }
    }

    /// Opens a file or directory; creates a missing directory, owned by `owner`.
    pub fn open_or_make_dir(&self, path: &Path, owner: (u32, u32)) -> Result<HostFile, PathError> {
        let is_missing = |error: &PathError| error.source.kind() == io::ErrorKind::NotFound;
        if let Some(relative) = self.strip_work_dir(path) {
            return self.work.open_or_make_dir(relative, owner);
        }
        for above in path.ancestors() {
            match HostRoot::open_trusted(above) {
                Err(error) if is_missing(&error) && above != Path::new("/") => {}
                // The path may be a file, which can be mounted too.
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
        match self.strip_work_dir(path) {
            Some(relative) => {
                self.work.read(relative).or_else(|error| match self.cached(relative) {
                    Some((cache, path)) => cache.root.read(&path),
                    None => Err(error),
                })
            }
            None => HostFile::open_trusted(path)?.reopen(),
        }
    }

    /// Returns the path in the action cache that a linked path of the work directory leads to.
    fn cached(&self, relative: &Path) -> Option<(&ActionCache, PathBuf)> {
        let cache = self.actions.as_ref().filter(|_| relative.starts_with(ACTIONS))?;
        let (link, target) =
            relative.ancestors().find_map(|path| Some((path, self.work.link_target(path)?)))?;
        let rest = relative.strip_prefix(link).ok()?;
        Some((cache, target.strip_prefix(&cache.path).ok()?.join(rest).components().collect()))
    }

    /// Opens a directory as a root: paths are resolved only beneath it.
    pub fn directory(&self, path: &Path) -> Result<HostRoot, PathError> {
        match self.strip_work_dir(path) {
            Some(relative) => self.work.subdirectory(relative),
            None => HostRoot::open_trusted(path),
        }
    }

    /// Opens a file for writing without truncating it; creates it if it is missing.
    pub fn write(&self, path: &Path) -> Result<File, PathError> {
        if let Some(relative) = self.strip_work_dir(path) {
            return self.work.write(relative);
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(PathError::new("write", path, io::ErrorKind::IsADirectory));
        };
        let dir = HostRoot::open_trusted(dir)
            .map_err(|error| PathError::new("open", path, error.source))?;
        dir.write(Path::new(name))
    }

    /// Returns a path relative to the work directory if it is lexically beneath it.
    fn strip_work_dir<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        self.work.strip_root(path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use oci_hooks_host::file_user::own_ids;

    use super::*;

    #[test]
    fn linked_actions_are_read_beneath_the_cache_only() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (work, cache) = (dir.join("_work"), dir.join("cache"));
        let action = cache.join("octo_hello/0123/octo-hello-0123");
        fs::create_dir_all(action.join("sub")).unwrap();
        fs::create_dir_all(work.join("_actions/octo/hello")).unwrap();
        fs::create_dir_all(work.join("other")).unwrap();
        fs::create_dir_all(dir.join("secret")).unwrap();
        symlink(dir.join("secret"), action.join("out")).unwrap();
        let link = |name: &str, target: &Path| symlink(target, work.join(name)).unwrap();
        link("_actions/octo/hello/v1", &action);
        link("_actions/octo/hello/secret", &dir.join("secret"));
        link("_actions/octo/hello/up", &cache.join("../secret"));
        link("_actions/octo/hello/again", &action.join("out"));
        link("other/v1", &action);
        let without = RunnerFiles::new(&work).unwrap();
        without.read(&work.join("_actions/octo/hello/v1")).unwrap_err();
        let missing = without.clone().with_actions(&dir.join("missing")).unwrap();
        assert!(missing.actions().is_none());
        let files = without.with_actions(&cache).unwrap();
        for path in ["v1", "v1/sub"] {
            files.read(&work.join("_actions/octo/hello").join(path)).unwrap();
        }
        for path in ["hello/secret", "hello/up", "hello/again", "hello/v1/out", "hello/v1/../../x"]
        {
            files.read(&work.join("_actions/octo").join(path)).unwrap_err();
        }
        files.read(&work.join("other/v1")).unwrap_err();
        files.write(&work.join("_actions/octo/hello/v1/file")).unwrap_err();
    }

    #[test]
    fn links_are_followed_only_outside_of_the_work_directory() {
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
