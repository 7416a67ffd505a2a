//! What can go wrong with the store.

use std::path::PathBuf;

use crate::image::{ConfigurationError, Digest, Reference, UnpackError};
use crate::sys::fs::{PathError, ReadError, ReplaceError};
use crate::sys::record::RecordError;

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system says so.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A record could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record could not be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// A record is not what this program writes.
    #[error("{} is damaged: remove it", path.display())]
    Record {
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A newer version of this program wrote a record.
    #[error(transparent)]
    Newer(RecordError),
    /// What somebody needs cannot be told.
    #[error(
        "{} cannot be read, so that any layer may be in use and none is removed: it goes with the \
         container or the call that it is of",
        path.display()
    )]
    Lease { path: PathBuf, source: Box<StoreError> },
    /// A layer could not be unpacked.
    #[error("cannot unpack the layer {diff_id}")]
    Unpack { diff_id: Digest, source: UnpackError },
    /// The image's configuration is not usable.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The image's configuration is not the one that the manifest names.
    #[error("digest mismatch for the image configuration: expected {expected}")]
    ConfigurationDigest { expected: Digest },
    /// A layer of the image is not in the store, or was removed meanwhile.
    #[error("layer {diff_id} of {reference} not found in the store: pull the image again")]
    NoLayer { reference: Box<Reference>, diff_id: Digest },
    /// A holder's name cannot be a file name.
    #[error(
        "invalid lease holder {holder:?}: expected at most 128 letters, digits, \"-\", \"_\" and \".\""
    )]
    Holder { holder: String },
}

impl StoreError {
    /// Returns whether it says that nobody can read a record: it is damaged, or of another version.
    pub(super) fn is_unreadable(&self) -> bool {
        match self {
            StoreError::Record { .. } | StoreError::Newer(_) => true,
            StoreError::Read(error) => error.is_of_the_file(),
            _ => false,
        }
    }

    /// Returns whether a newer version of this program wrote the record that it is about.
    pub(super) fn is_newer(&self) -> bool {
        matches!(self, StoreError::Newer(_))
    }
}

impl From<RecordError> for StoreError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Invalid { path, source } => StoreError::Record { path, source },
            newer => StoreError::Newer(newer),
        }
    }
}
