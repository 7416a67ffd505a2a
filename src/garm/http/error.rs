//! What can go wrong, told apart by what helps: another try, or somebody who looks into it.

use std::error::Error as StdError;
use std::io;

/// Why there is no answer, or not the one that was hoped for.
///
/// Addresses in it are without logins and parameters, which may be permissions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// What should be certificates is not.
    #[error("invalid CA certificates: expected PEM")]
    Certificates { source: io::Error },
    /// What should be a proxy is not.
    #[error("invalid proxy address {proxy:?}")]
    Proxy { proxy: String },
    /// It is no address of a web server, or one with a login in it.
    #[error("invalid address {url:?}: expected http:// or https:// without a login")]
    Address { url: String },
    /// The server refuses, or cannot.
    #[error("{method} {url}: {status}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status {
        method: &'static str,
        url: String,
        status: u16,
        /// What it said, a piece of it.
        message: String,
    },
    /// No connection could be made, or it was cut.
    #[error("{method} {url}: unreachable")]
    Unreachable { method: &'static str, url: String, source: io::Error },
    /// It took too long to connect, or nothing came for too long.
    #[error("{method} {url}: timed out")]
    Timeout { method: &'static str, url: String },
    /// The server's certificate is not to be trusted.
    #[error("{method} {url}: invalid TLS certificate")]
    Tls { method: &'static str, url: String, source: io::Error },
    /// What it speaks is not HTTP as it should be.
    #[error("{method} {url}: invalid HTTP response")]
    Protocol { method: &'static str, url: String, source: io::Error },
    /// It sends us where we do not go.
    #[error("{method} {url}: rejected redirect to {target:?}: {reason}")]
    Redirect {
        method: &'static str,
        url: String,
        target: String,
        /// Why we do not go there.
        reason: &'static str,
    },
    /// It sends more than can be right.
    #[error("{method} {url}: more than {limit_bytes} bytes")]
    TooLarge {
        method: &'static str,
        url: String,
        /// What was expected at most.
        limit_bytes: u64,
    },
}

impl HttpError {
    /// Returns whether another try may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            HttpError::Unreachable { .. } | HttpError::Timeout { .. } => true,
            HttpError::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }

    /// Explains why a request had no answer.
    pub(super) fn of_request(method: &'static str, url: String, error: ureq::Error) -> Self {
        match error {
            ureq::Error::Timeout(_) => HttpError::Timeout { method, url },
            ureq::Error::HostNotFound => {
                let source = io::Error::new(io::ErrorKind::NotFound, "unknown host");
                HttpError::Unreachable { method, url, source }
            }
            ureq::Error::Io(source) => HttpError::of_io(method, url, source),
            ureq::Error::ConnectionFailed | ureq::Error::ConnectProxyFailed(_) => {
                HttpError::Unreachable { method, url, source: error.into_io() }
            }
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) => {
                HttpError::Tls { method, url, source: error.into_io() }
            }
            error => HttpError::Protocol { method, url, source: error.into_io() },
        }
    }

    /// Explains why no more of an answer came.
    pub(super) fn of_io(method: &'static str, url: String, source: io::Error) -> Self {
        if is_timeout(&source) {
            return HttpError::Timeout { method, url };
        }
        match cause::<ureq::Error>(&source) {
            Some(ureq::Error::Protocol(_)) => HttpError::Protocol { method, url, source },
            _ if cause::<rustls::Error>(&source).is_some() => {
                HttpError::Tls { method, url, source }
            }
            _ => HttpError::Unreachable { method, url, source },
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
        || matches!(cause::<ureq::Error>(error), Some(ureq::Error::Timeout(_)))
}

/// Finds an error of a kind among the causes of another.
fn cause<T: StdError + 'static>(error: &io::Error) -> Option<&T> {
    let mut cause = error.get_ref().map(|inner| inner as &(dyn StdError + 'static));
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // `io::Error` gives out what it holds only so; its `source` is one further.
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
