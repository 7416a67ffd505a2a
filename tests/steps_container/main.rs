//! A server of `step-runner` in containers that runc and crun run, asked from outside. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/busybox.rs"]
mod busybox;
#[path = "../support/mod.rs"]
mod support;

mod proxy;
mod setup;
