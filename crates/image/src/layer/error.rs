//! Limits and errors of unpacking a layer.

use std::io;
use std::path::PathBuf;

use crate::Digest;

/// Errors of unpacking a layer.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The blob could not be read, from the network or from a file.
    #[error("cannot read the layer")]
    Read(#[source] io::Error),
    /// The compressed data is damaged.
    #[error("the layer's compressed data is damaged")]
    Inflate(#[source] io::Error),
    /// The layer's compression is not supported.
    #[error("the layer is compressed with {name}: build the image again with gzip or zstd")]
    Compression {
        /// Name of the compression, such as `xz`.
        name: &'static str,
    },
    /// The digest differs from the expected one.
    #[error("digest mismatch for the layer's {what}: expected {expected}, got {actual}")]
    Digest {
        /// Content with the wrong digest: the blob, or the archive in it.
        what: &'static str,
        /// Digest in the manifest or the configuration.
        expected: Digest,
        actual: Digest,
    },
    /// The blob has another size than the manifest says.
    #[error(
        "layer size mismatch: expected {expected} bytes, got {actual}{}",
        if actual > expected { " or more" } else { "" }
    )]
    Size {
        expected: u64,
        /// Bytes read until the difference was found.
        actual: u64,
    },
    /// The archive is malformed, or readers would disagree on its content.
    #[error("the layer's archive is malformed before byte {offset}: {reason}")]
    Archive {
        /// Offset in the uncompressed archive.
        offset: u64,
        reason: &'static str,
    },
    #[error("the layer's entry {path:?} {reason}")]
    Entry {
        /// The name of the entry.
        path: PathBuf,
        /// Reason to reject the entry.
        reason: &'static str,
    },
    /// The layer exceeds a limit.
    #[error("the layer exceeds the limit of {limit}")]
    Limit { limit: LayerLimit },
    /// A file belongs to an id that the user namespace does not have.
    #[error(
        "{path:?} of the layer belongs to {what} {id}, but only {what}s 0 to {} are mapped: {}",
        count - 1, range(*id, file)
    )]
    Owner {
        path: PathBuf,
        /// `user` or `group`.
        what: &'static str,
        id: u32,
        /// Number of mapped ids, which are consecutive from 0.
        count: u32,
        /// File in `/etc` with the user's id ranges: `subuid` or `subgid`.
        file: &'static str,
    },
    #[error("cannot {action} {path:?} of the layer")]
    File {
        /// Failed action, as a verb.
        action: &'static str,
        /// The name of the entry.
        path: PathBuf,
        source: io::Error,
    },
}

/// First id that cannot be mapped: no host has such large ranges.
const FIRST_UNMAPPABLE_ID: u32 = 1 << 30;

/// Returns a hint on how to map an id.
fn range(id: u32, file: &str) -> String {
    if id >= FIRST_UNMAPPABLE_ID {
        return format!(
            "/etc/{file} cannot have a range that large: give the file another owner in the image"
        );
    }
    // Id 0 is the user itself, so a range of this size is enough. Usual sizes are multiples of 65536.
    let enough = id.next_multiple_of(1 << 16);
    format!(
        "give the user that runs this program a range of {enough} or more ids in /etc/{file}, `USER:FIRST:{enough}`, \
         which no other user has, in place of the smaller one; then end all jobs of this user, which keep the old range"
    )
}

/// Limits of one layer.
///
/// The defaults are far above the needs of images and far below what hurts a machine; a layer that
/// exceeds one is rejected with the limit's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerLimits {
    /// Bytes of the blob, of the uncompressed archive, and of a sparse file with its holes.
    pub bytes: u64,
    /// Ratio of the uncompressed archive to the blob. The first GiB is exempt: a file full of zeros
    /// shrinks a thousandfold.
    pub ratio: u64,
    /// Files, directories, links and whiteouts together.
    pub entries: u64,
    pub depth: usize,
}

/// Uncompressed bytes that are exempt from the ratio.
pub const RATIO_FREE_BYTES: u64 = 1 << 30;

impl Default for LayerLimits {
    fn default() -> Self {
        LayerLimits { bytes: 64 << 30, ratio: 200, entries: 4_000_000, depth: 128 }
    }
}

/// One of the [`LayerLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerLimit {
    Bytes(u64),
    Ratio(u64),
    Entries(u64),
    Depth(usize),
}

impl std::fmt::Display for LayerLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LayerLimit::Bytes(bytes) => write!(f, "{bytes} bytes"),
            LayerLimit::Ratio(ratio) => write!(f, "{ratio} times its compressed size"),
            LayerLimit::Entries(entries) => write!(f, "{entries} entries"),
            LayerLimit::Depth(depth) => write!(f, "{depth} components in a path"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_owner_is_named_with_the_required_range() {
        let error = |id| {
            let path = "opt/app".into();
            let (what, file) = ("group", "subgid");
            UnpackError::Owner { path, what, id, count: 65537, file }.to_string()
        };
        assert_eq!(
            error(70_000),
            "\"opt/app\" of the layer belongs to group 70000, but only groups 0 to 65536 are mapped: give \
             the user that runs this program a range of 131072 or more ids in /etc/subgid, `USER:FIRST:131072`, \
             which no other user has, in place of the smaller one; then end all jobs of this user, which keep \
             the old range"
        );
        assert!(error(65_537).contains("a range of 131072 or more"), "{}", error(65_537));
        assert!(error(u32::MAX - 1).contains("a range that large"), "{}", error(u32::MAX - 1));
    }
}
