//! OCI hooks as podman and CRI-O configure them: hook files in `hooks.d` directories, matched
//! against a container's `config.json` and injected into it. With the feature `engine`, containers
//! without a daemon: images, root file systems, networks and their life cycle on runc, crun or youki.
//!
//! Start at [`hooks`].

#[cfg(feature = "engine")]
pub mod bundle;
#[cfg(feature = "engine")]
pub mod container;
#[cfg(feature = "container-hook")]
pub mod container_hook;
#[cfg(feature = "garm")]
pub mod garm;
pub mod hooks;
#[cfg(feature = "engine")]
pub mod image;
#[cfg(feature = "engine")]
pub mod network;
#[cfg(feature = "engine")]
pub mod rootfs;
#[cfg(any(feature = "runtime-wrapper", feature = "engine"))]
pub mod runtime;
#[cfg(feature = "step-runner")]
pub mod step_runner;
pub mod sys;
#[cfg(any(feature = "container-hook", feature = "step-runner"))]
pub mod yaml;
