//! Injected hooks with real runtimes and engines: runc and crun called directly, podman, and Docker through
//! `oci-hooks-runtime`.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod capture;
mod containerd;
mod docker;
mod explain;
mod hooks_dir;
mod injected;
mod opened;
mod podman;
mod podman_dirs;
mod replace;
mod restore;
mod runtimes;
mod settings;
mod setup;
mod wrapper;
