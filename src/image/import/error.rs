//! Why an image could not be imported.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use crate::image::{ConfigurationError, ManifestError, StoreError, UnpackError};
use crate::sys::fs::PathError;

/// Why an image could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file system says so.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A manifest or index is not usable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The configuration is not usable.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(
        "{} is not an image: found neither index.json of an OCI layout nor manifest.json of \
         \"docker save\"", path.display()
    )]
    Format {
        /// What was to be imported.
        path: PathBuf,
    },
    /// The archive cannot be read as one.
    #[error("cannot read {} as an archive", path.display())]
    Archive { path: PathBuf, source: UnpackError },
    /// The archive holds too many files.
    #[error("{} has more files than any image", path.display())]
    Entries { path: PathBuf },
    #[error("file {name:?} of the image not found")]
    NoFile {
        /// Its name in the layout or archive.
        name: String,
    },
    /// A file cannot be read.
    #[error("cannot read {name:?} of the image")]
    Read {
        /// Its name in the layout or archive.
        name: String,
        source: io::Error,
    },
    /// A document is too large.
    #[error("{name:?} of the image is too large")]
    TooLarge {
        /// Its name in the layout or archive.
        name: String,
    },
    /// A document is not what its digest says.
    #[error("digest or size mismatch for {name:?} of the image")]
    Digest {
        /// Its name in the layout or archive.
        name: String,
    },
    #[error("manifest.json of the image is malformed")]
    Saved(#[source] serde_json::Error),
    /// There are several images, or none.
    #[error(
        "ambiguous image: the archive has several, or none of that name: expected one of {}",
        available.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    )]
    Several {
        /// The names of those that are there.
        available: BTreeSet<String>,
    },
    /// Manifest and configuration do not fit.
    #[error("the image has {files} layers, but its configuration {diff_ids}")]
    LayerCount { files: usize, diff_ids: usize },
    /// Indexes that name indexes without end.
    #[error("the image's index leads to too many other indexes")]
    Indexes,
}
