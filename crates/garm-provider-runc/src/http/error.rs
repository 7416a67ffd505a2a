//! Errors of HTTP requests, classified as transient or permanent.

use std::io;

use oci_hooks_files::error::cause;

/// Errors of HTTP requests.
///
/// URLs are without credentials and queries, which may contain signatures.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("invalid CA certificates from GARM or `ca` under [boot]: expected PEM")]
    Certificates { source: io::Error },
    #[error("invalid proxy URL {proxy:?}: expected one such as http://proxy.example.com:3128")]
    Proxy { proxy: String },
    #[error("invalid URL {url:?}: expected http:// or https://, without user name and password")]
    Address { url: String },
    /// The server returned an error status.
    #[error("{method} {url}: {status}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status {
        method: &'static str,
        url: String,
        status: u16,
        /// Message of the server, truncated.
        message: String,
    },
    /// The connection failed, or broke.
    #[error("{method} {url}: unreachable")]
    Unreachable { method: &'static str, url: String, source: io::Error },
    /// Connecting took too long, or the server sent nothing for too long.
    #[error("{method} {url}: timed out")]
    Timeout { method: &'static str, url: String },
    /// The server's certificate is not trusted.
    #[error("{method} {url}: invalid TLS certificate")]
    Tls { method: &'static str, url: String, source: io::Error },
    /// The response is not valid HTTP.
    #[error("{method} {url}: invalid HTTP response")]
    Protocol { method: &'static str, url: String, source: io::Error },
    /// The redirect is not permitted.
    #[error("{method} {url}: rejected redirect to {target:?}: {reason}")]
    Redirect { method: &'static str, url: String, target: String, reason: &'static str },
    /// The response is too large.
    #[error("{method} {url}: the response is larger than {limit_bytes} bytes")]
    TooLarge { method: &'static str, url: String, limit_bytes: u64 },
}

impl HttpError {
    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            HttpError::Unreachable { .. } | HttpError::Timeout { .. } => true,
            HttpError::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }

    /// Converts the error of a request that got no response.
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

    /// Converts the error of reading a response.
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
