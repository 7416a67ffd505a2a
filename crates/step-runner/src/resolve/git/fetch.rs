//! Fetches a revision of a repository into a directory.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_files::fs::{PathContext as _, make_private};
use oci_hooks_files::lock::FileLock;

use super::checkout;
use super::error::GitError;
use super::options::{GitCredential, GitFetcher};
use super::program::GitRunner;
use super::repository::{GitRepository, is_commit};

/// Text in git's error message if the server asks for credentials and git has none.
const ASKS_FOR_PASSWORD: &str = "could not read Username";

/// Poll interval for the lock of a repository.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl GitFetcher<'_> {
    /// Returns a directory with the files of a revision: a tag, a branch, a commit, or a commit abbreviated
    /// to at least eight digits. The directory is shared, and must not be changed.
    ///
    /// # Errors
    ///
    /// Fails if the repository or revision does not exist, or the fetch times out or is interrupted.
    pub fn fetch(&self, url: &str, rev: &str) -> Result<PathBuf, GitError> {
        if rev == ".git" {
            return Err(GitError::DotGit);
        }
        let repository = GitRepository::parse(url, self.files)?;
        private_dir(self.cache)?;
        let dir = self.cache.join(repository.directory());
        private_dir(&dir)?;
        let commit = rev.to_ascii_lowercase();
        let tree = dir.join(&commit);
        if is_commit(&commit) && tree.exists() {
            return Ok(tree);
        }
        let deadline = Instant::now() + self.timeout;
        // Before the lock is taken: if git is missing, that is reported without waiting.
        let git = GitRunner::new(&repository, self, deadline)?;
        let _lock = self.lock(&repository, &dir.join("lock"), deadline)?;
        checkout::tree(git, &dir, rev).map_err(|error| self.explain(&repository, error))
    }

    /// Adds an explanation to an authentication error if the job's token was not sent to its own
    /// server, because the connection is not encrypted.
    fn explain(&self, repository: &GitRepository, error: GitError) -> GitError {
        let is_withheld = |token: &GitCredential| {
            let origin = GitRepository::parse(&token.origin, false);
            repository.credential.is_none()
                && repository.url.starts_with("http://")
                && origin.is_ok_and(|origin| origin.host() == repository.host())
        };
        match error {
            GitError::Failed { url, message }
                if message.contains(ASKS_FOR_PASSWORD)
                    && self.credential.as_ref().is_some_and(is_withheld) =>
            {
                let message = format!("{message}: CI_JOB_TOKEN is sent over https only");
                GitError::Failed { url, message }
            }
            error => error,
        }
    }

    /// Locks a repository; waits while other jobs fetch it.
    fn lock(
        &self,
        repository: &GitRepository,
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
                return Err(self.timeout_error(&repository.url));
            }
        }
    }
}

/// Creates a directory with mode 0700, or checks that only this user owns and can write to an
/// existing one.
fn private_dir(dir: &Path) -> Result<(), GitError> {
    make_private(dir)?;
    let found = fs::symlink_metadata(dir).with_path("inspect", dir)?;
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
    fn cache_writable_by_others_is_not_used() {
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
