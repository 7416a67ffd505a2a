//! `step-runner` called as gitlab-runner 19.4 calls its helper: with its command lines, in containers that
//! runc and crun run. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod container;
mod docker;
mod helper_image;
mod images;
mod instance;
mod kubernetes;
