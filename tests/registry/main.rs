//! Pulling from real and from hostile registries. None of this needs root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod cache;
mod content;
mod credentials;
mod download;
mod interruptions;
mod proof;
mod real;
mod setup;
mod slow;
#[path = "../support/mod.rs"]
mod support;
