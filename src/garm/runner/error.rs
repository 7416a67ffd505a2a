//! Why there is no runner.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::bundle::UserError;
use crate::garm::http::HttpError;
use crate::image::UnpackError;
use crate::sys::fs::{PathError, ReadError, ReplaceError};
use crate::sys::record::RecordError;

/// Why there is no runner for an instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// A newer version of this program made it.
    #[error(transparent)]
    Newer(RecordError),
    /// GARM offers none for the architecture.
    #[error("{}", no_tool(arch, known))]
    NoTool { arch: String, known: String },
    /// What GARM gives for a digest is none.
    #[error("runner checksum {text:?} is not a SHA-256 digest")]
    Checksum { text: String },
    /// The server does not give the archive.
    #[error("cannot download the runner")]
    Http(#[source] HttpError),
    /// The connection broke too often.
    #[error("cannot download the runner from {url}: the connection broke after {bytes} bytes")]
    Broken {
        /// Where, without what may be secret.
        url: String,
        bytes: u64,
        /// How it broke the last time.
        source: io::Error,
    },
    #[error("cannot download the runner from {url}: timed out after {} s with {bytes} bytes received", timeout.as_secs())]
    TooSlow {
        /// Where, without what may be secret.
        url: String,
        bytes: u64,
        /// How long it may take.
        timeout: Duration,
    },
    /// The server sends so little that waiting for it makes no sense.
    #[error(
        "cannot download the runner from {url}: {bytes} bytes came in {} s, expected at least \
         {bytes_per_second} bytes/s", time.as_secs()
    )]
    Pace {
        /// Where, without what may be secret.
        url: String,
        bytes: u64,
        time: Duration,
        /// How fast it has to be.
        bytes_per_second: u64,
    },
    /// The archive is larger than is allowed.
    #[error("the runner at {url} is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// Where, without what may be secret.
        url: String,
        limit_bytes: u64,
    },
    /// The archive is not the one that GARM wants.
    #[error("digest mismatch for the runner at {url}: expected {expected}, got {actual}")]
    Digest {
        /// Where, without what may be secret.
        url: String,
        expected: String,
        actual: String,
    },
    /// The archive could not be unpacked.
    #[error("cannot unpack the runner from {url}")]
    Unpack {
        /// Where, without what may be secret.
        url: String,
        source: UnpackError,
    },
    /// There is something else in the archive.
    #[error("{url} is not a runner archive: {missing} is missing")]
    NotARunner {
        /// Where, without what may be secret.
        url: String,
        missing: &'static str,
    },
    /// The user is not in the image, and cannot be added by this name.
    #[error(
        "unknown user {name:?}: not in the image, and not a name that can be added: expected at most 32 of a-z, 0-9, \"_\" and \"-\", a letter or \"_\" first"
    )]
    UserName { name: String },
    /// The user cannot be looked up in the image.
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// The record of a runner holds something else.
    #[error("invalid record of a cached runner: {}", path.display())]
    Record { path: PathBuf, source: serde_json::Error },
}

fn no_tool(arch: &str, known: &str) -> String {
    match known {
        "" => format!("there is no runner for linux on {arch}: GARM offers no runner at all"),
        _ => format!("there is no runner for linux on {arch}: GARM offers {known}"),
    }
}
