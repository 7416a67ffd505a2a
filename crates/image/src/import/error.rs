//! Errors of importing images.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use oci_hooks_files::fs::PathError;

use super::MAX_INDEXES;
use super::files::MAX_ENTRIES;
use crate::{ConfigurationError, ManifestError, StoreError, UnpackError};

/// Errors of importing an image.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(
        "{} is not an image: found neither index.json of an OCI layout nor manifest.json of \
         \"docker save\"", path.display()
    )]
    Format {
        /// File or directory to import.
        path: PathBuf,
    },
    #[error("cannot read {} as an archive", path.display())]
    Archive { path: PathBuf, source: UnpackError },
    /// The archive has too many files.
    #[error("{} is not an image: it has more than {MAX_ENTRIES} files and links", path.display())]
    Entries { path: PathBuf },
    #[error("{name:?} is missing from the image: its archive or OCI layout is incomplete")]
    NoFile {
        /// Name of the file in the layout or archive.
        name: String,
    },
    /// A file cannot be read.
    #[error("cannot read {name:?} of the image")]
    Read {
        /// Name of the file in the layout or archive.
        name: String,
        source: io::Error,
    },
    /// A manifest, an index or a configuration is too large.
    #[error("{name:?} is too large for an image (limit {limit_bytes} bytes)")]
    TooLarge {
        /// Name of the file in the layout or archive, or path of the decompressed archive.
        name: String,
        limit_bytes: u64,
    },
    /// A file does not match the digest or size in its descriptor.
    #[error(
        "digest or size mismatch for {name:?} of the image: its archive or OCI layout is damaged"
    )]
    Digest {
        /// Name of the file in the layout or archive.
        name: String,
    },
    #[error("manifest.json of the image is malformed")]
    Saved(#[source] serde_json::Error),
    /// The name selects no single image: several images have it, or none has it.
    #[error(
        "ambiguous image: the archive has several images, or none, with the given name: {}",
        expected_names(available)
    )]
    Several {
        /// Names of the images in the archive.
        available: BTreeSet<String>,
    },
    /// Manifest and configuration differ in the number of layers.
    #[error(
        "the image has {files} layers, but its configuration lists {diff_ids}: build or save it again"
    )]
    LayerCount { files: usize, diff_ids: usize },
    /// Indexes are nested too deeply.
    #[error("the indexes of the image are nested too deeply (limit {})", MAX_INDEXES - 1)]
    Indexes,
}

/// Returns the names of the images in an archive, for messages.
fn expected_names(available: &BTreeSet<String>) -> String {
    if available.is_empty() {
        return "it has no image with a name".to_owned();
    }
    let names: Vec<_> = available.iter().map(String::as_str).collect();
    format!("expected one of {}", names.join(", "))
}
