//! Bundles and root file systems of ours, run by runc and crun. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod confinement;
mod container;
mod hooks;
mod id_mapping;
mod overlay;
mod paths;
mod users;
