//! Fetches a revision of a repository into a directory.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::GitError;
use super::options::{Git, GitMethod};
use super::program::{Runner, prefers_program};
use super::repository::{Repository, is_commit};
use super::{mirror, native};
use crate::sys::fs::PathContext as _;
use crate::sys::lock::FileLock;

/// Time between looks at whether somebody else still fetches from the same repository.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Git<'_> {
    /// Returns a directory with the files of a revision: a tag, a branch, a commit, or at least eight
    /// digits of one. The directory is shared, and must not be changed.
    ///
    /// # Errors
    ///
    /// Fails if the repository or revision does not exist, or the fetch times out or is interrupted.
    pub fn fetch(&self, url: &str, rev: &str) -> Result<PathBuf, GitError> {
        if rev == ".git" {
            return Err(GitError::DotGit);
        }
        let repository = Repository::parse(url, self.files)?;
        private_dir(self.cache)?;
        let dir = self.cache.join(repository.directory());
        private_dir(&dir)?;
        let commit = rev.to_ascii_lowercase();
        let tree = dir.join(&commit);
        if is_commit(&commit) && tree.exists() {
            return Ok(tree);
        }
        let deadline = Instant::now() + self.timeout;
        // The program may be missing: to be said before anything is waited for.
        let program = || Runner::new(&repository, self, deadline);
        let is_native = repository.host().is_some_and(|host| match self.method {
            GitMethod::Auto => !prefers_program(self.env, &host),
            GitMethod::Native => true,
            GitMethod::Program => false,
        });
        if !is_native {
            let git = program()?;
            let _lock = self.lock(&repository, &dir.join("lock"), deadline)?;
            return mirror::tree(git, &dir, rev);
        }
        let _lock = self.lock(&repository, &dir.join("lock"), deadline)?;
        match native::tree(self, &repository, &dir, rev, deadline) {
            Err(error @ GitError::Outdated { .. }) if self.method == GitMethod::Auto => {
                match program() {
                    Ok(git) => mirror::tree(git, &dir, rev),
                    // What the server lacks says more.
                    Err(_) => Err(error),
                }
            }
            tree => tree,
        }
    }

    /// Waits until nobody else fetches from a repository.
    fn lock(
        &self,
        repository: &Repository,
        path: &Path,
        deadline: Instant,
    ) -> Result<FileLock, GitError> {
        loop {
            if let Some(lock) = FileLock::try_exclusive(path)? {
                return Ok(lock);
            }
            if self.interrupt.pause(POLL_INTERVAL).is_err() {
                return Err(GitError::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(self.timed_out(&repository.url));
            }
        }
    }
}

/// Creates a private directory, or checks that an existing one is private.
fn private_dir(dir: &Path) -> Result<(), GitError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at("make", dir)?;
    let found = fs::symlink_metadata(dir).at("inspect", dir)?;
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_ours && found.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(GitError::NotPrivate(dir.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_others_may_write_to_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        private_dir(&dir).unwrap();
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(private_dir(&dir), Err(GitError::NotPrivate(_))));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        assert!(matches!(private_dir(&link), Err(GitError::NotPrivate(_))));
    }
}
