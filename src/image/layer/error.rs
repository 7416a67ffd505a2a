//! Limits of unpacking a layer, and why one could not be unpacked.

use std::io;
use std::path::PathBuf;

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
    /// A file belongs to somebody whom the user namespace does not have.
    #[error(
        "the layer's {path:?} belongs to {what} {id}, and there are 0 to {} here: {}", count - 1,
        range(*id, file)
    )]
    Owner {
        path: PathBuf,
        /// `user` or `group`.
        what: &'static str,
        id: u32,
        /// How many ids there are, from 0 on.
        count: u32,
        /// The file in `/etc` that says so.
        file: &'static str,
    },
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

/// Ids past this are not for files of images: no host has as many to give.
const MOST: u32 = 1 << 30;

/// Returns what to ask for, that there be an id.
fn range(id: u32, file: &str) -> String {
    if id >= MOST {
        return format!(
            "no range in /etc/{file} has so many; give the file another owner in the image"
        );
    }
    // Id 0 is the user itself, so a range of that many is enough. They are given in such pieces.
    let enough = id.next_multiple_of(1 << 16);
    format!(
        "ask for a range of at least {enough} ids in /etc/{file}, as in `USER:100000:{enough}`, and end the \
         user's jobs"
    )
}

/// How much one layer may hold.
///
/// The defaults are far above what images need and far below what hurts a machine; a layer that
/// needs more is rejected with the limit's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the blob, of the archive when inflated, and of a sparse file with its holes.
    pub bytes: u64,
    /// How many times larger than the blob the inflated archive may be. The first GiB is free:
    /// a file full of zeros shrinks a thousandfold.
    pub ratio: u64,
    /// Files, directories, links and whiteouts together.
    pub entries: u64,
    /// Components of any path in it.
    pub depth: usize,
}

/// Inflated bytes that the ratio is not asked about.
pub const RATIO_FREE_BYTES: u64 = 1 << 30;

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 64 << 30, ratio: 200, entries: 4_000_000, depth: 128 }
    }
}

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    Bytes(u64),
    Ratio(u64),
    Entries(u64),
    Depth(usize),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Limit::Ratio(ratio) => write!(f, "{ratio} times its compressed size"),
            Limit::Entries(entries) => write!(f, "{entries} entries"),
            Limit::Depth(depth) => write!(f, "{depth} components in a path"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_out_of_range_is_named_with_the_range_that_would_do() {
        let error = |id| {
            let path = "opt/app".into();
            let (what, file) = ("group", "subgid");
            UnpackError::Owner { path, what, id, count: 65537, file }.to_string()
        };
        assert_eq!(
            error(70_000),
            "the layer's \"opt/app\" belongs to group 70000, and there are 0 to 65536 here: ask for a \
             range of at least 131072 ids in /etc/subgid, as in `USER:100000:131072`, and end the user's \
             jobs"
        );
        assert!(error(65_537).contains("at least 131072"), "{}", error(65_537));
        assert!(error(u32::MAX - 1).contains("no range"), "{}", error(u32::MAX - 1));
    }
}
