//! A client for registries, by the [distribution specification]: it reads, and pushes what it is given.
//!
//! It follows redirects itself, since no HTTP client's rules are strict enough for credentials:
//! they go to the very origin of the registry and to the token server that it names, if that is
//! reached as safely as the registry. A blob is a stream that is checked while it is read and
//! carries on where it was when the connection breaks.
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
pub use client::{Fetched, OpenError, RegistryClient, Repository};
pub use error::RegistryError;
pub use options::{ClientOptions, RegistryOptions, Retry};
pub use push::{Destination, PushError, Pushed};
