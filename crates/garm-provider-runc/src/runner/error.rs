//! Errors of providing a runner.

use std::io;
use std::time::Duration;

use oci_hooks_engine::bundle::UserError;
use oci_hooks_files::fs::{PathError, ReadError, ReplaceError};
use oci_hooks_files::record::RecordError;
use oci_hooks_image::UnpackError;

use crate::http::HttpError;

/// Errors of providing a runner for an instance. URLs are without credentials and queries.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The cached runner is from a newer version of this program.
    #[error(transparent)]
    Newer(RecordError),
    /// GARM offers no archive for the architecture.
    #[error("{}", missing_tool_message(arch, known))]
    NoTool { arch: String, known: String },
    #[error(
        "invalid checksum {text:?} of the runner archive from GARM: expected a SHA-256 digest of 64 hex digits"
    )]
    Checksum { text: String },
    #[error("cannot download the runner")]
    Http(#[source] HttpError),
    /// The connection broke too often.
    #[error("cannot download the runner from {url}: failed after {bytes} bytes")]
    Broken { url: String, bytes: u64, source: io::Error },
    #[error("cannot download the runner from {url}: timed out after {} s with {bytes} bytes received", timeout.as_secs())]
    TooSlow { url: String, bytes: u64, timeout: Duration },
    /// The server sends too slowly.
    #[error(
        "cannot download the runner from {url}: received {bytes} bytes in {} s, expected at least \
         {bytes_per_second} bytes/s", time.as_secs()
    )]
    Pace { url: String, bytes: u64, time: Duration, bytes_per_second: u64 },
    #[error("the runner at {url} is larger than the limit of {limit_bytes} bytes")]
    TooLarge { url: String, limit_bytes: u64 },
    /// The digest differs from GARM's.
    #[error("digest mismatch for the runner at {url}: expected {expected}, got {actual}")]
    Digest { url: String, expected: String, actual: String },
    #[error("cannot unpack the runner from {url}")]
    Unpack { url: String, source: UnpackError },
    #[error("{url} is not a runner archive: {missing} is missing")]
    NotARunner { url: String, missing: &'static str },
    /// The user is not in the image, and cannot be added under this name.
    #[error(
        "user {name:?} is not in the image, and cannot be added under this name: expected up to 32 of a-z, 0-9, \"_\" and \
         \"-\", a letter or \"_\" first"
    )]
    UserName { name: String },
    /// The user cannot be looked up in the image.
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] ReplaceError),
}

fn missing_tool_message(arch: &str, known: &str) -> String {
    match known {
        "" => "no runner found in the image, and GARM offers no runner at all".to_owned(),
        _ => format!(
            "no runner found in the image, and GARM offers none for linux on {arch}, only for {known}"
        ),
    }
}
