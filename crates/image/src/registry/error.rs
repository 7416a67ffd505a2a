//! Errors of registries.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;

use crate::{Digest, HelperError, ManifestError};

/// Errors of requests to a registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A login is needed, or the repository does not exist: registries do not distinguish these.
    #[error("{registry}: authentication required for {repository}, or it does not exist: {hint}")]
    Unauthorized { registry: String, repository: String, hint: &'static str },
    /// The login is valid, but lacks permission.
    #[error(
        "{registry}: permission to {action} {repository} denied to this user: ask its owner for it"
    )]
    Forbidden {
        registry: String,
        repository: String,
        /// Denied action: `pull` or `push`.
        action: &'static str,
    },
    #[error("{what} not found in {registry}: check the name")]
    NotFound { registry: String, what: String },
    /// The registry's rate limit is exceeded.
    #[error("rate limit of {registry} exceeded{}: log in, use a mirror, or wait", wait(*.retry_after))]
    RateLimited {
        registry: String,
        /// Delay requested by the server.
        retry_after: Option<Duration>,
    },
    #[error("{server} answered {status} to the request for {what}{}", detail(.message))]
    Status {
        /// The server, which may be one that a registry redirected to.
        server: String,
        what: String,
        status: u16,
        message: String,
        /// Delay requested by the server.
        retry_after: Option<Duration>,
    },
    /// The connection could not be established, or broke.
    #[error("cannot reach {server}")]
    Unreachable { server: String, source: io::Error },
    /// The registry cannot be reached, after its mirrors could not serve the request.
    #[error("mirrors failed: {mirrors}; the registry itself")]
    AfterMirrors {
        /// Errors of the mirrors.
        mirrors: String,
        source: Box<RegistryError>,
    },
    /// The server was silent for too long.
    #[error("timed out waiting for {server}")]
    Timeout { server: String },
    /// The server sends less than the minimum rate.
    #[error(
        "{server} sends {image} too slowly: {received_bytes} bytes in {} s, expected at least \
         {bytes_per_second} bytes/s: try again later, or use a mirror",
        time.as_secs()
    )]
    TooSlow {
        /// The server, which may be one that a registry redirected to.
        server: String,
        image: String,
        received_bytes: u64,
        time: Duration,
        bytes_per_second: u64,
    },
    /// The pull takes longer than its time limit.
    #[error(
        "{image} is not complete after {} s, the time limit of a pull: use a mirror", limit.as_secs()
    )]
    TooLong { image: String, limit: Duration },
    #[error("{server} speaks plain HTTP where HTTPS was expected")]
    PlainHttp { server: String },
    /// The server's certificate is not trusted.
    #[error("cannot trust the certificate of {server}")]
    Tls { server: String, source: io::Error },
    #[error("invalid HTTP response from {server}")]
    Protocol { server: String, source: io::Error },
    /// A redirect is not followed: its target is invalid or less secure, or there were too many.
    #[error("{server} redirects to {target:?}, which is not followed: {reason}")]
    Redirect {
        server: String,
        target: String,
        /// Reason for not following the redirect.
        reason: &'static str,
    },
    /// The token server is not safe for credentials, or returns no token.
    #[error("cannot get a token from {realm:?}, the token server of {registry}: {reason}")]
    TokenServer {
        registry: String,
        /// URL of the token server.
        realm: String,
        /// Defect of the token server.
        reason: &'static str,
    },
    /// A server referred to an internal address of this machine or its network.
    #[error(
        "{server} refers to {host}, which has the internal address {address}: only a registry at \
         this address may do so"
    )]
    InternalAddress {
        /// Server that referred to the host.
        server: String,
        host: String,
        address: IpAddr,
    },
    /// The authentication scheme is neither Basic nor Bearer.
    #[error("{registry}: unsupported authentication scheme: expected Basic or Bearer")]
    Challenge { registry: String },
    /// The digest of the content differs from the requested one.
    #[error("digest mismatch for content from {server}: expected {expected}, got {found}")]
    Digest { server: String, expected: Digest, found: Digest },
    /// Content is larger or smaller than its descriptor says.
    #[error(
        "size mismatch for {digest} from {server}: expected {expected} bytes, got {found}{}",
        if found > expected { " or more" } else { "" }
    )]
    Size { server: String, digest: Digest, expected: u64, found: u64 },
    /// A document exceeds the limit of its type.
    #[error("{what} in {server} is too large (limit {limit} bytes)")]
    TooLarge { server: String, what: String, limit: u64 },
    /// The registry lacks the layer, and its URLs are invalid or may not be used.
    #[error(
        "layer {digest} is not in {registry}, only at {}, from which it is not fetched: push the image \
         to {registry} with all layers", urls.join(", ")
    )]
    ForeignLayer { registry: String, digest: Digest, urls: Vec<String> },
    /// The login could not be determined.
    #[error(transparent)]
    Helper(#[from] HelperError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file with certificates cannot be read.
    #[error(transparent)]
    CertificateFile(#[from] PathError),
    /// The proxy is not a valid URL.
    #[error("invalid proxy {proxy:?}: expected http://[USER:PASSWORD@]HOST:PORT")]
    Proxy { proxy: String },
    /// The registry accepted an upload without a `Location`.
    #[error("{registry} accepted an upload to {repository} without a Location header")]
    NoLocation { registry: String, repository: String },
    /// The name of a mirror is invalid.
    #[error("invalid mirror {mirror:?}: expected HOST[:PORT][/PATH]")]
    Mirror { mirror: String },
}

impl RegistryError {
    /// Returns whether the server accepted no connection, so that it did nothing yet.
    pub fn is_connection_refused(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        match self {
            RegistryError::AfterMirrors { source, .. } => source.is_connection_refused(),
            RegistryError::Unreachable { source, .. } => {
                [ConnectionRefused, HostUnreachable, NetworkUnreachable].contains(&source.kind())
            }
            _ => false,
        }
    }

    /// Returns whether the server could not be reached.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, RegistryError::Unreachable { .. } | RegistryError::Timeout { .. })
    }

    /// Returns whether the server timed out or could not be reached, except for a broken connection: it
    /// will probably not answer a moment later either.
    pub(crate) fn is_unresponsive(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let broken = [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof];
        match self {
            RegistryError::Unreachable { source, .. } => !broken.contains(&source.kind()),
            RegistryError::Timeout { .. } => true,
            _ => false,
        }
    }

    /// Adds the errors of the mirrors if the registry could not be reached, as on a host that may use
    /// only the mirrors.
    pub(super) fn after_mirrors<'a>(self, errors: impl Iterator<Item = &'a RegistryError>) -> Self {
        let mirrors = errors.map(|error| chain(error)).collect::<Vec<_>>().join("; ");
        if mirrors.is_empty() || !self.is_unreachable() {
            return self;
        }
        RegistryError::AfterMirrors { mirrors, source: Box::new(self) }
    }

    /// Returns whether the same request may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            RegistryError::AfterMirrors { source, .. } => source.is_transient(),
            RegistryError::Unreachable { .. }
            | RegistryError::Timeout { .. }
            | RegistryError::TooSlow { .. }
            | RegistryError::Protocol { .. }
            | RegistryError::RateLimited { .. } => true,
            RegistryError::Status { status, .. } => matches!(status, 408 | 425 | 500 | 502..=504),
            _ => false,
        }
    }

    /// Returns the delay that the server requested before the next attempt, or zero.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            RegistryError::RateLimited { retry_after, .. }
            | RegistryError::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether the registry denied access, which may look like a missing repository.
    pub fn is_access_denied(&self) -> bool {
        matches!(
            self,
            RegistryError::Unauthorized { .. }
                | RegistryError::Forbidden { .. }
                | RegistryError::NotFound { .. }
        )
    }
}

fn wait(retry_after: Option<Duration>) -> String {
    retry_after.map_or(String::new(), |time| format!(", try again in {} seconds", time.as_secs()))
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}
