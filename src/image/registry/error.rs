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
    /// It wants to know who asks.
    #[error("{registry} gives {repository} only to known users, or has no such repository: {hint}")]
    Unauthorized {
        /// The registry.
        registry: String,
        /// The repository.
        repository: String,
        /// What to do.
        hint: &'static str,
    },
    /// It knows who asks, and does not give it.
    #[error(
        "{registry} does not let this user read {repository}: ask its owner for permission to pull"
    )]
    Forbidden {
        /// The registry.
        registry: String,
        /// The repository.
        repository: String,
    },
    /// It is not there.
    #[error("there is no {what} in {registry}: check the name")]
    NotFound {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
    },
    /// It was asked too often.
    #[error("{registry} was asked too often{}: log in, use a mirror, or wait", wait(*.retry_after))]
    RateLimited {
        /// The registry.
        registry: String,
        /// How long it wants us to wait.
        retry_after: Option<Duration>,
    },
    /// It answered something else.
    #[error("{server} answered {status} to the request for {what}{}", detail(.message))]
    Status {
        /// The server, which may be one that a registry redirected to.
        server: String,
        /// What was asked for.
        what: String,
        /// The HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// No connection could be made, or it broke.
    #[error("cannot reach {server}")]
    Unreachable {
        /// The server.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// It was silent for too long.
    #[error("{server} does not answer in time")]
    Timeout {
        /// The server.
        server: String,
    },
    /// It sends so little that waiting for it makes no sense.
    #[error(
        "{server} sends {image} too slowly: {received_bytes} bytes in {} s, expected at least \
         {bytes_per_second} bytes/s: try again later, use a mirror, or lower min-pull-speed",
        time.as_secs()
    )]
    TooSlow {
        /// The server, which may be one that a registry redirected to.
        server: String,
        /// The image.
        image: String,
        /// How much came.
        received_bytes: u64,
        /// In which time.
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
        /// The image.
        image: String,
        /// How long it may take.
        limit: Duration,
    },
    /// It does not encrypt.
    #[error(
        "{server} speaks plain HTTP where HTTPS was expected: if that is right, set insecure = true \
         for {server}"
    )]
    PlainHttp {
        /// The server.
        server: String,
    },
    /// Its certificate is not to be trusted.
    #[error(
        "cannot trust {server}: name the file of its certificate authority in ca_files for {server}, \
         or set insecure = true"
    )]
    Tls {
        /// The server.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// It does not speak HTTP as it should.
    #[error("{server} does not speak HTTP correctly")]
    Protocol {
        /// The server.
        server: String,
        /// What is wrong.
        source: io::Error,
    },
    /// It sent us where we do not go.
    #[error("{server} redirects to {target:?}: {reason}")]
    Redirect {
        /// The server.
        server: String,
        /// Where it sent us.
        target: String,
        /// Why we do not go there.
        reason: &'static str,
    },
    /// Its token server is not one to send credentials to, or gives no token.
    #[error("{registry} names {realm:?} as its token server: {reason}")]
    TokenServer {
        /// The registry.
        registry: String,
        /// The address of the token server.
        realm: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Someone sent us into the private parts of this machine's network.
    #[error("{server} leads to {host}, which is {address}: only a registry there may name it")]
    InternalAddress {
        /// The server that named the host.
        server: String,
        /// The host.
        host: String,
        /// Its address.
        address: IpAddr,
    },
    /// It wants to know who asks in a way that is not known here.
    #[error("{registry} wants a login other than by password or token")]
    Challenge {
        /// The registry.
        registry: String,
    },
    /// Content is not what its digest says.
    #[error("{server} sent something else than {expected}: its digest is {found}")]
    Digest {
        /// The server.
        server: String,
        /// The digest that was asked for.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// Content is larger or smaller than its descriptor says.
    #[error("{server} sent {found} bytes or more for {digest}, which has {expected}")]
    Size {
        /// The server.
        server: String,
        /// What was asked for.
        digest: Digest,
        /// The size in the descriptor.
        expected: u64,
        /// How many bytes came.
        found: u64,
    },
    /// A document is larger than such documents may be.
    #[error("{what} in {server} has more than {limit} bytes")]
    TooLarge {
        /// The server.
        server: String,
        /// The document.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A layer is only on servers that were not configured to be asked.
    #[error(
        "the layer {digest} is not in {registry}, only at {}: set foreign_layers = true to fetch it \
         from there", urls.join(", ")
    )]
    ForeignLayer {
        /// The registry.
        registry: String,
        /// The layer.
        digest: Digest,
        /// Where it is.
        urls: Vec<String>,
    },
    /// The manifest is not usable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file with certificates cannot be read.
    #[error(transparent)]
    CertificateFile(#[from] PathError),
    /// The proxy is not an address.
    #[error("{proxy:?} is not a proxy: http://[USER:PASSWORD@]HOST:PORT")]
    Proxy {
        /// What was configured.
        proxy: String,
    },
    /// A mirror is not the name of a registry.
    #[error("{mirror:?} is not a mirror: HOST[:PORT][/PATH]")]
    Mirror {
        /// What was configured.
        mirror: String,
    },
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
