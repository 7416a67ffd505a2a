//! Why a layer could not be unpacked.

use std::io;
use std::path::PathBuf;

use super::limits::Limit;
use crate::image::Digest;

/// Why a layer could not be unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The blob could not be read, from the network or from a file.
    #[error("cannot read the layer")]
    Read(#[source] io::Error),
    /// The compressed data is damaged.
    #[error("the layer's compressed data is damaged")]
    Inflate(#[source] io::Error),
    /// The layer is compressed in a way that is not supported.
    #[error("the layer is compressed with {name}: build the image again with gzip or zstd")]
    Compression {
        /// The program that makes such data.
        name: &'static str,
    },
    /// The blob is not the one that was asked for.
    #[error("digest mismatch for the layer's {what}: expected {expected}, got {actual}")]
    Digest {
        /// What was hashed: the blob, or the archive in it.
        what: &'static str,
        /// What the manifest or the configuration says.
        expected: Digest,
        actual: Digest,
    },
    /// The blob has another size than the manifest says.
    #[error("layer size mismatch: expected {expected} bytes, got at least {actual}")]
    Size {
        expected: u64,
        /// What was read until the difference showed.
        actual: u64,
    },
    /// The archive is malformed, or readers would disagree on what it says.
    #[error("the layer's archive is malformed before byte {offset}: {reason}")]
    Archive {
        /// Where in the inflated archive.
        offset: u64,
        reason: &'static str,
    },
    #[error("the layer's entry {path:?} {reason}")]
    Entry {
        /// The name of the entry.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The layer holds more than it may.
    #[error("the layer exceeds the limit of {limit}")]
    Limit { limit: Limit },
    /// The file system refused something.
    #[error("cannot {action} {path:?} of the layer")]
    File {
        /// What could not be done, as a verb.
        action: &'static str,
        /// The name of the entry.
        path: PathBuf,
        source: io::Error,
    },
}
