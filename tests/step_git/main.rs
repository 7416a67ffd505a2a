//! Steps in git repositories, fetched from a server on the loopback interface. None of this needs root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod credentials;
mod hostile;
mod native;
mod revisions;
mod setup;
#[path = "../support/mod.rs"]
mod support;
