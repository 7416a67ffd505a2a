//! Injected hooks with real runtimes and engines: runc and crun by hand, podman, and Docker through
//! `oci-hooks-runtime`.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod capture;
mod containerd;
mod docker;
mod hooks_dir;
mod opened;
mod podman;
mod podman_dirs;
mod replace;
mod restore;
mod runtimes;
mod settings;
mod setup;
mod wrapper;
