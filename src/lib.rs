//! OCI hooks as podman and CRI-O configure them: hook files in `hooks.d` directories, matched
//! against a container's `config.json` and injected into it.
//!
//! Start at [`hooks`].

pub mod hooks;
#[cfg(feature = "runtime-wrapper")]
pub mod runtime;
pub mod sys;
