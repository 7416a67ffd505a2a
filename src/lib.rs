//! OCI hooks as podman and CRI-O configure them: hook files in `hooks.d` directories, matched
//! against a container's `config.json` and injected into it. With the feature `engine`, containers
//! without a daemon: images, root file systems, networks and their life cycle on runc or crun.
//!
//! | to | start at | feature | example |
//! |---|---|---|---|
//! | inject hooks from a container runtime | [`hooks`] | | [`inject.rs`] |
//! | follow hook directories in a daemon | `hooks::Monitor` | `monitor` | [`monitor.rs`] |
//! | send steps to a step runner | `step_runner::client` | `step-runner` | [`step_client.rs`] |
//!
#![doc = concat!("[`inject.rs`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/examples/inject.rs")]
#![doc = concat!("[`monitor.rs`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/examples/monitor.rs")]
#![doc = concat!("[`step_client.rs`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/examples/step_client.rs")]
//!
//! # Inject hooks
//!
//! Hooks that match are added to a configuration, of which everything else is preserved byte for byte:
//!
//! ```
//! use oci_hooks::hooks::{FilterOptions, Pipeline, consumer::PODMAN, trust::TrustOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::fs::write(dir.path().join("a.json"), r#"{"version": "1.0.0", "hook": {"path": "/bin/true"},
//! #     "when": {"commands": ["sh$"]}, "stages": ["createRuntime"]}"#)?;
//! let mut pipeline = Pipeline::for_consumer(&PODMAN);
//! pipeline.strict = Some(TrustOptions::of_process()); // rejects hooks that others can change
//! pipeline.precreate = Some(FilterOptions::new("/run/bundle")); // runs precreate hooks
//! # pipeline.load.dirs = vec![dir.path().into()];
//!
//! let injected = pipeline.run(br#"{"process": {"args": ["/bin/sh"]}, "vendor": 1.0}"#)?;
//! for hook in &injected.report.hooks {
//!     println!("{}: {}", hook.file.display(), hook.reason);
//! }
//! assert_eq!(
//!     String::from_utf8(injected.config)?,
//!     r#"{"process": {"args": ["/bin/sh"]}, "vendor": 1.0,"hooks":{"createRuntime":[{"path":"/bin/true","env":[]}]}}"#
//! );
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! The library without programs is `default-features = false`; the parts below are added one by one.
//!
//! | feature | adds |
//! |---|---|
//! | | [`hooks`]: load, match, inject, explain, `precreate` hooks; [`json`] |
//! | `monitor` | `hooks::Monitor`: snapshots of hook directories that follow their changes |
//! | `lint` | `hooks::lint`: mistakes in hook files, and fixes |
//! | `directories` | `hooks::directories`: the directories that podman and CRI-O are configured to read |
//! | `capture` | `hooks::capture`: records output and exit status of hooks |
//! | `oci-spec` | conversions to the types of the `oci-spec` crate |
//! | `engine` | `image`, `bundle`, `rootfs`, `network`, `container`: containers on runc or crun |
//! | `step-runner` | `step_runner`: GitLab's steps, their server and its client; the program `step-runner` |
//! | `container-hook` | `container_hook`: GitHub's container hooks; the program `container-hook` |
//! | `kubernetes` | `container_hook::kubernetes`: jobs as pods of a cluster |
//! | `garm` | `garm`: GARM's external provider; the program `garm-provider-runc` |
//! | `nri` | `nri`: hooks for containerd and CRI-O; the program `oci-hooks-nri` |
//! | `runtime-wrapper` | `runtime`: command lines of runtimes; the program `oci-hooks-runtime` |
//! | `cli` (default) | the program `oci-hooks`, with `monitor`, `lint`, `directories`, `capture` |
//! | `full` | all programs |
//!
//! The library never prints, exits, or reads the environment. What it does are events of `tracing`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

/// The example of README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "engine")]
pub mod bundle;
#[cfg(feature = "engine")]
pub mod container;
#[cfg(feature = "container-hook")]
pub mod container_hook;
#[cfg(feature = "garm")]
pub mod garm;
pub mod hooks;
pub mod host;
#[cfg(feature = "engine")]
mod http;
#[cfg(feature = "engine")]
pub mod image;
pub mod json;
#[cfg(feature = "engine")]
pub mod network;
#[cfg(feature = "nri")]
pub mod nri;
#[doc(hidden)]
#[cfg(any(feature = "program", feature = "runtime-wrapper"))]
pub mod program;
#[cfg(feature = "engine")]
pub mod rootfs;
#[cfg(any(feature = "runtime-wrapper", feature = "engine"))]
pub mod runtime;
#[cfg(feature = "step-runner")]
pub mod step_runner;
#[doc(hidden)]
pub mod sys;
#[cfg(any(feature = "container-hook", feature = "step-runner"))]
pub mod yaml;
