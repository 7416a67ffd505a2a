//! `builtin://function/oci/build` and `builtin://function/oci/publish`: images of functions, with a registry.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod build;
mod cli;
mod faults;
mod hostile;
mod logins;
mod publish;
mod setup;
#[path = "../support/mod.rs"]
mod support;
