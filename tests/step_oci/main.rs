//! Steps in container images, pulled from a registry with a password. As root, to be another user.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod images;
mod setup;
mod user;
