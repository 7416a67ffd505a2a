//! The engine by itself, with real runc and crun. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/busybox.rs"]
mod busybox;
mod cgroups;
mod deletion;
mod disk;
mod layers;
mod setup;
mod streams;
#[path = "../support/mod.rs"]
mod support;
