//! Layers and the store, against hostile archives, killed processes and what GNU tar and umoci
//! make of the same archives. As root: owners, devices and whiteouts need it.
//!
//! Tests are named after the rows of the table of threats in `SECURITY.md`.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod archive;
mod beneath;
mod bombs;
mod compare;
mod import;
mod store;
#[path = "../support/mod.rs"]
mod support;
