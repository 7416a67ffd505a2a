//! Registry client that follows the [distribution specification]: reads and pushes images.
//!
//! It follows redirects itself, because the rules of HTTP clients are not strict enough for
//! credentials: these go only to the registry's origin and to the token server that it names, if
//! the connection is as secure as the registry's. A blob is a stream whose size is checked, and that
//! is resumed when the connection breaks.
//!
//! [distribution specification]: https://github.com/opencontainers/distribution-spec/blob/main/spec.md

mod blob;
mod budget;
mod challenge;
mod client;
mod endpoint;
mod error;
mod guard;
mod options;
mod push;
mod source;
mod token;

pub use blob::BlobReader;
pub use client::{FetchedDocument, RegistryClient, RegistryRepository};
pub use error::RegistryError;
pub use options::{ClientOptions, RegistryOptions, RetryOptions};
pub use push::{PushDestination, PushError, PushOutcome};
