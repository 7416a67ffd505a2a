//! A directory of this call on the runner's own disk, where no job can write.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tracing::debug;

use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError, random_u64};
use crate::sys::removal::remove_tree;

/// Not the runner's work directory: where that is on a claim, the pods of its jobs can write to it.
const PARENT: &str = "/tmp";

/// A directory that is removed with all that is in it.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self, PathError> {
        let path = Path::new(PARENT).join(format!("container-hook-{:016x}", random_u64()));
        // Fails for one that somebody else made.
        DirBuilder::new().mode(0o700).create(&path).at("make the directory", &path)?;
        Ok(Scratch(path))
    }

    /// Returns the path of something in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a directory in it, and returns its path.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf, PathError> {
        let path = self.path(name);
        DirBuilder::new().mode(0o700).create(&path).at("make the directory", &path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            // The runner's pod ends after its job.
            debug!(error = chain(&error), "cannot remove what was built from");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn nobody_else_sees_it_and_nothing_is_left_of_it() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.0.clone();
        let directory = scratch.directory("a").unwrap();
        fs::write(directory.join("file"), "a").unwrap();
        for path in [&path, &directory] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        drop(scratch);
        assert!(!path.exists());
    }
}
