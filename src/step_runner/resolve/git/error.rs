//! Why a repository could not be fetched.

use std::path::PathBuf;

use crate::sys::fs::PathError;
use crate::sys::process::RunError;

/// Why a commit of a repository could not be had. Passwords are in none of the messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// The URL is none that is fetched from.
    #[error("{url:?} is no repository: {reason}")]
    Url {
        /// The URL, without password.
        url: String,
        /// Why.
        reason: &'static str,
    },
    /// A revision that could be taken for the repository itself. The words are those of GitLab's
    /// Step Runner, as the next one's.
    #[error(".git version not allowed")]
    DotGit,
    /// There is no such tag, branch or commit.
    #[error("cannot find version {0:?}")]
    Version(String),
    /// There is no program `git`.
    #[error("cannot find the program git in {0:?}")]
    NoProgram(String),
    /// Git cannot be run.
    #[error("cannot run git: {0}")]
    Run(#[from] RunError),
    /// Git said no.
    #[error("cannot fetch {url}: {message}")]
    Failed {
        /// The repository, without password.
        url: String,
        /// The last that git said.
        message: String,
    },
    /// It took too long.
    #[error("cannot fetch {url}: it took more than {seconds} seconds")]
    TimedOut {
        /// The repository, without password.
        url: String,
        /// How long it may take.
        seconds: u64,
    },
    /// Somebody else could put something into the cache.
    #[error("{} belongs to another user, or others may write to it", .0.display())]
    NotPrivate(PathBuf),
    /// The cache cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
}
