//! Errors in fetching git repositories.

use std::path::PathBuf;

use oci_hooks_files::fs::PathError;
use oci_hooks_files::process::RunError;

/// An error in fetching a commit. Messages never contain passwords.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The URL is invalid or not supported.
    #[error("invalid repository URL {url:?}: {reason}")]
    Url { url: String, reason: &'static str },
    /// The revision is `.git`, which would name the repository itself. The message is that of
    /// GitLab's step runner.
    #[error(".git version not allowed")]
    DotGit,
    /// The tag, branch or commit does not exist. The message is that of GitLab's step runner.
    #[error("cannot find version {0:?}")]
    Version(String),
    /// The program `git` was not found.
    #[error(
        "git not found in PATH {0:?}: install git, or refer to the step as an OCI image, which needs no other program"
    )]
    NoProgram(String),
    #[error("cannot run git")]
    Run(#[from] RunError),
    #[error("cannot fetch {url}: {message}")]
    Failed { url: String, message: String },
    #[error("cannot fetch {url}: timed out after {seconds} s")]
    TimedOut {
        url: String,
        /// Timeout of the fetch in seconds.
        seconds: u64,
    },
    /// The job was cancelled, or its maximum run time is over.
    #[error("interrupted: the job was cancelled or exceeded its maximum run time")]
    Interrupted,
    /// A cache directory is owned or writable by another user.
    #[error("cache directory {}: expected a directory that only this user owns and can write to", .0.display())]
    NotPrivate(PathBuf),
    /// An operation on a file or directory of the cache failed.
    #[error(transparent)]
    Path(#[from] PathError),
}
