//! What can go wrong with a registry.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use crate::image::{Digest, ManifestError};
use crate::sys::fs::PathError;

/// Why a registry did not give what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A login is needed, or the repository does not exist: registries do not say which.
    #[error("{registry}: authentication required for {repository}, or it does not exist: {hint}")]
    Unauthorized { registry: String, repository: String, hint: &'static str },
    /// The login is known, and may not do what was asked for.
    #[error(
        "{registry}: permission to {action} {repository} denied to this user: ask its owner for it"
    )]
    Forbidden {
        registry: String,
        repository: String,
        /// What is not permitted: `pull` or `push`.
        action: &'static str,
    },
    #[error("{what} not found in {registry}: check the name")]
    NotFound { registry: String, what: String },
    /// The registry's rate limit is exceeded.
    #[error("rate limit of {registry} exceeded{}: log in, use a mirror, or wait", wait(*.retry_after))]
    RateLimited {
        registry: String,
        /// How long it wants us to wait.
        retry_after: Option<Duration>,
    },
    #[error("{server} answered {status} to the request for {what}{}", detail(.message))]
    Status {
        /// The server, which may be one that a registry redirected to.
        server: String,
        what: String,
        status: u16,
        message: String,
        /// How long it wants us to wait.
        retry_after: Option<Duration>,
    },
    /// No connection could be made, or it broke.
    #[error("cannot reach {server}")]
    Unreachable { server: String, source: io::Error },
    /// It was silent for too long.
    #[error("timed out waiting for {server}")]
    Timeout { server: String },
    /// It sends so little that waiting for it makes no sense.
    #[error(
        "{server} sends {image} too slowly: {received_bytes} bytes in {} s, expected at least \
         {bytes_per_second} bytes/s: try again later, use a mirror, or lower min-pull-speed",
        time.as_secs()
    )]
    TooSlow {
        /// The server, which may be one that a registry redirected to.
        server: String,
        image: String,
        received_bytes: u64,
        time: Duration,
        /// How fast it has to be.
        bytes_per_second: u64,
    },
    /// The whole image takes too long.
    #[error(
        "{image} is not complete after {} s, which is all a pull may take: use a mirror, or raise \
         max-pull-time", limit.as_secs()
    )]
    TooLong {
        image: String,
        /// How long it may take.
        limit: Duration,
    },
    #[error(
        "{server} speaks plain HTTP where HTTPS was expected: if that is right, set insecure = true \
         for {server}"
    )]
    PlainHttp { server: String },
    /// Its certificate is not to be trusted.
    #[error(
        "cannot trust the certificate of {server}: add its CA certificate as `ca` of this registry, or set \
         `insecure = true` for it"
    )]
    Tls { server: String, source: io::Error },
    /// It does not speak HTTP as it should.
    #[error("invalid HTTP response from {server}")]
    Protocol { server: String, source: io::Error },
    /// It redirects to where credentials or requests must not go.
    #[error("{server} redirects to {target:?}: {reason}")]
    Redirect {
        server: String,
        target: String,
        /// Why we do not go there.
        reason: &'static str,
    },
    /// Its token server is not one to send credentials to, or gives no token.
    #[error("{registry} names {realm:?} as its token server: {reason}")]
    TokenServer {
        registry: String,
        /// The address of the token server.
        realm: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A server named an address of this machine's private network.
    #[error("{server} leads to {host}, which is {address}: only a registry there may name it")]
    InternalAddress {
        /// The server that named the host.
        server: String,
        host: String,
        address: IpAddr,
    },
    /// The authentication scheme is neither Basic nor Bearer.
    #[error("{registry}: unsupported authentication scheme: expected Basic or Bearer")]
    Challenge { registry: String },
    /// The content has another digest than it was asked for by.
    #[error("digest mismatch for content from {server}: expected {expected}, got {found}")]
    Digest {
        server: String,
        /// The digest that was asked for.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// Content is larger or smaller than its descriptor says.
    #[error(
        "size mismatch for {digest} from {server}: expected {expected} bytes, got at least {found}"
    )]
    Size {
        server: String,
        digest: Digest,
        /// The size in the descriptor.
        expected: u64,
        found: u64,
    },
    /// A document is larger than such documents may be.
    #[error("{what} in {server} is too large (limit {limit} bytes)")]
    TooLarge { server: String, what: String, limit: u64 },
    /// A layer is only on servers that were not configured to be asked.
    #[error(
        "the layer {digest} is not in {registry}, only at {}: set foreign_layers = true to fetch it \
         from there", urls.join(", ")
    )]
    ForeignLayer { registry: String, digest: Digest, urls: Vec<String> },
    /// The manifest is not usable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file with certificates cannot be read.
    #[error(transparent)]
    CertificateFile(#[from] PathError),
    /// The proxy is not an address.
    #[error("invalid proxy {proxy:?}: expected http://[USER:PASSWORD@]HOST:PORT")]
    Proxy { proxy: String },
    /// It accepted an upload without saying where it goes.
    #[error("{registry} accepts an upload to {repository} without a Location for it")]
    NoLocation { registry: String, repository: String },
    /// A mirror is not the name of a registry.
    #[error("invalid mirror {mirror:?}: expected HOST[:PORT][/PATH]")]
    Mirror { mirror: String },
}

impl RegistryError {
    /// Returns whether the same request may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            RegistryError::Unreachable { .. }
            | RegistryError::Timeout { .. }
            | RegistryError::TooSlow { .. }
            | RegistryError::Protocol { .. }
            | RegistryError::RateLimited { .. } => true,
            RegistryError::Status { status, .. } => matches!(status, 408 | 425 | 500 | 502..=504),
            _ => false,
        }
    }

    /// Returns how long the server wants us to wait before the next attempt; zero if it does not say.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            RegistryError::RateLimited { retry_after, .. }
            | RegistryError::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether the registry said that this user may not see it.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            RegistryError::Unauthorized { .. }
                | RegistryError::Forbidden { .. }
                | RegistryError::NotFound { .. }
        )
    }
}

fn wait(retry_after: Option<Duration>) -> String {
    retry_after.map_or(String::new(), |time| format!(", for {} seconds", time.as_secs()))
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}
