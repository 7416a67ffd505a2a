//! OCI hooks as podman and CRI-O configure them: hook files in `hooks.d` directories, matched
//! against a container's `config.json` and injected into it. This crate runs no containers:
//! `oci-hooks-engine` does, and `oci-hooks-nri` is the plugin for containerd and CRI-O.
//!
//! | to | start at | feature | example |
//! |---|---|---|---|
//! | inject hooks from a container runtime | [`hooks`] | | [`inject.rs`] |
//! | inject hooks into an `oci_spec::runtime::Spec` | [`hooks::MatchTarget::of_spec`] | | [`runtime.rs`] |
//! | follow hook directories in a daemon | `hooks::Monitor` | `monitor` | [`monitor.rs`] |
//!
#![doc = concat!("[`inject.rs`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/examples/inject.rs")]
#![doc = concat!("[`runtime.rs`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/examples/runtime.rs")]
#![doc = concat!("[`monitor.rs`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/examples/monitor.rs")]
//!
//! # Inject hooks
//!
//! Matching hooks are added to a configuration; everything else is preserved byte for byte:
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
//! To use the library without its program, set `default-features = false`.
//!
//! | feature | adds |
//! |---|---|
//! | | [`hooks`]: load, match, inject, explain, `precreate` hooks; conversions to the types of `oci-spec`; [`json`] |
//! | `monitor` | `hooks::Monitor`: snapshots of hook directories that follow their changes; the same for devices; enables `cdi` |
//! | `lint` | `hooks::lint`: mistakes in hook files, and fixes; enables `cdi` |
//! | `cdi` | [`cdi`]: devices of the Container Device Interface |
//! | `cli` (default) | the program `oci-hooks`, with `lint`, `monitor`, `hooks::directories`, `hooks::capture` |
//!
//! The library never prints, exits, or reads the environment. It reports its actions as `tracing` events.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

/// Compiles the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "cdi")]
pub mod cdi;
pub mod hooks;
pub mod json;

/// Types and errors for files and child processes that occur in the signatures of this crate.
pub use oci_hooks_files as files;
