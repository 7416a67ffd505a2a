//! Errors of the image store.

use std::path::PathBuf;

use oci_hooks_files::fs::{PathError, ReadError, ReplaceError};
use oci_hooks_files::record::RecordError;

use crate::{ConfigurationError, Digest, ImageReference, UnpackError};

/// Errors of the image store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// A record could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record could not be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    #[error("{} is damaged: remove it", path.display())]
    Record { path: PathBuf, source: serde_json::Error },
    /// A newer version of this program wrote the record.
    #[error(transparent)]
    Newer(RecordError),
    /// A lease or reservation is unreadable, so the layers in use are unknown.
    #[error(
        "{} cannot be read: it names the layers that a container or process uses, so no layer is removed until \
         that container or process ends",
        path.display()
    )]
    Lease { path: PathBuf, source: Box<StoreError> },
    /// A layer could not be unpacked.
    #[error("cannot unpack the layer {diff_id}")]
    Unpack { diff_id: Digest, source: UnpackError },
    /// The image's configuration is invalid.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The image's configuration does not have the digest in the manifest.
    #[error("digest mismatch for the image configuration: expected {expected}")]
    ConfigurationDigest { expected: Digest },
    /// A layer of the image is not in the store, or was removed meanwhile.
    #[error("layer {diff_id} of {reference} not found in the store: pull the image again")]
    NoLayer { reference: Box<ImageReference>, diff_id: Digest },
    /// The name of a lease's holder is not a valid file name.
    #[error(
        "invalid lease holder {holder:?}: expected at most 128 letters, digits, \"-\", \"_\" and \".\""
    )]
    Holder { holder: String },
}

impl StoreError {
    /// Returns whether a record is unreadable: corrupt, or written by a newer version of this
    /// program.
    pub(super) fn is_unreadable(&self) -> bool {
        match self {
            StoreError::Record { .. } | StoreError::Newer(_) => true,
            StoreError::Read(error) => error.is_file_defect(),
            _ => false,
        }
    }

    /// Returns whether a newer version of this program wrote the record.
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
