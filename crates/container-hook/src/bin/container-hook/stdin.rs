//! The request on standard input.

use std::io::{self, Read as _};

/// Maximum size of a request. The largest part of a request is the environment of a step, which the kernel
/// limits to a few MiB.
pub const MAX_BYTES: u64 = 64 << 20;

/// Errors of reading the request.
#[derive(Debug, thiserror::Error)]
pub enum StdinError {
    #[error("cannot read the request from standard input")]
    Read(#[source] io::Error),
    #[error("the request has more than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
}

/// Reads standard input to its end.
pub fn read() -> Result<Vec<u8>, StdinError> {
    let mut request = Vec::new();
    io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut request).map_err(StdinError::Read)?;
    if request.len() as u64 > MAX_BYTES {
        return Err(StdinError::TooLarge);
    }
    Ok(request)
}
