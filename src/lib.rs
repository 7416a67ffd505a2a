//! OCI hooks as podman and CRI-O configure them: hook files in `hooks.d` directories, matched
//! against a container's `config.json` and injected into it. With the feature `engine`, containers
//! without a daemon: images, root file systems, networks and their life cycle on runc or crun.
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
