//! Errors in resolving step references.

use std::io;
use std::path::PathBuf;

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;

use super::super::document::{DocumentError, ReferenceError};
use super::git::GitError;

/// An error in loading a step file.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The file could not be read.
    #[error("loading file \"{}\": reading file: {}", path.display(), reason(error))]
    Read { path: PathBuf, error: io::Error },
    /// The file is larger than [`MAX_BYTES`](super::super::document::MAX_BYTES).
    #[error("loading file \"{}\": file too large (limit {limit} bytes)", path.display())]
    TooLarge {
        path: PathBuf,
        /// Size limit of the file in bytes.
        limit: u64,
    },
    /// The file is not a valid step file.
    #[error("loading file \"{}\": {}", path.display(), error.message_without_file())]
    Document { path: PathBuf, error: Box<DocumentError> },
    /// The expanded reference is invalid.
    #[error("compiling reference: {0}")]
    Reference(ReferenceError),
    /// The built-in step does not exist.
    #[error("fetching dist step: fetch: distributed step {0:?} not found")]
    Builtin(String),
    /// The step is remote, and no cache directory is configured.
    #[error("no cache directory for remote steps")]
    NoCache,
    /// The image of the step could not be fetched.
    #[error("fetching image {name}: {}", chain(error.as_ref()))]
    Oci { name: String, error: Box<OciError> },
    /// The git repository of the step could not be fetched.
    #[error("fetching git step: {}", chain(.0))]
    Git(GitError),
    /// The step file could not be loaded from its git repository.
    #[error("fetching git step: {0}")]
    InRepository(Box<ResolveError>),
    /// The job was cancelled, or its maximum run time is over.
    #[error("interrupted: the job was cancelled or exceeded its maximum run time")]
    Interrupted,
    /// The path leads out of the repository or image.
    #[error("path {0:?} leads out of the repository or image")]
    Outside(PathBuf),
}

// Without `#[from]`, which would make these errors sources too: their messages would be printed twice.
impl From<ReferenceError> for ResolveError {
    fn from(error: ReferenceError) -> Self {
        ResolveError::Reference(error)
    }
}

impl From<GitError> for ResolveError {
    fn from(error: GitError) -> Self {
        ResolveError::Git(error)
    }
}

/// An error in fetching a container image.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    #[error("invalid image reference {name:?}")]
    Reference { name: String, source: oci_hooks_image::ReferenceError },
    /// The credentials in the job's `DOCKER_AUTH_CONFIG` are malformed.
    #[error("cannot use DOCKER_AUTH_CONFIG")]
    Logins(#[from] oci_hooks_image::CredentialFileError),
    /// The image could not be pulled.
    #[error(transparent)]
    Pull(#[from] oci_hooks_image::PullError),
    /// The image store could not be opened.
    #[error(transparent)]
    Store(#[from] oci_hooks_image::StoreError),
    /// The job was cancelled, or its maximum run time is over.
    #[error("interrupted: the job was cancelled or exceeded its maximum run time")]
    Interrupted,
    /// The layers could not be copied to the cache.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Returns the message of an I/O error as Go formats it.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}
