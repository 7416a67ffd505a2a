//! Why a step file could not be had.

use std::io;
use std::path::PathBuf;

use super::super::document::{DocumentError, ReferenceError};
use super::super::engine::reason;
use super::git::GitError;
use crate::image;
use crate::sys::fs::PathError;

/// Why a step file could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// It could not be read.
    #[error(
        "loading file \"{0}\": reading file: open {0}: {1}", path.display(), reason(error)
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is larger than a step file may be.
    #[error("loading file \"{}\": it has more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// How many bytes it may have.
        limit: u64,
    },
    /// It is not a step file.
    #[error("loading file \"{}\": {error}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        error: Box<DocumentError>,
    },
    /// The reference, made of an expression, is none.
    #[error("compiling reference: {0}")]
    Reference(#[from] ReferenceError),
    /// This program has no such step.
    #[error("fetching dist step: fetch: distributed step {0:?} not found")]
    Builtin(String),
    /// It is elsewhere, and there is nowhere to put it.
    #[error("steps from elsewhere need a directory to keep them in, and there is none")]
    NoCache,
    /// It is in an image that could not be had.
    #[error("fetching image {name}: {}", chain(error))]
    Oci {
        /// The image.
        name: String,
        /// Why.
        error: Box<OciError>,
    },
    /// It is in a git repository that could not be had.
    #[error("fetching git step: {0}")]
    Git(#[from] GitError),
    /// It is in a git repository, and could not be read there.
    #[error("fetching git step: {0}")]
    InRepository(Box<ResolveError>),
    /// A path in a repository or an image leads out of it.
    #[error("{0:?} is not within what was fetched")]
    Outside(PathBuf),
}

/// Why the files of an image could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// Its name is none.
    #[error("{name:?} is no image")]
    Reference {
        /// The name.
        name: String,
        /// Why.
        source: image::ReferenceError,
    },
    /// The job's logins are malformed.
    #[error("DOCKER_AUTH_CONFIG")]
    Logins(#[from] image::CredentialFileError),
    /// It could not be pulled.
    #[error(transparent)]
    Pull(#[from] image::PullError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] image::StoreError),
    /// Its files cannot be laid out.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Returns an error with its causes: clients see one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
