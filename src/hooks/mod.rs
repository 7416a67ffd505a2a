//! hooks.d: load hook files, match them against a container, inject what matches.
//!
//! Hook files are JSON files in directories that podman, CRI-O and others read. Each names a program
//! ([`Hook`]), the conditions under which it applies ([`When`]), and the [`Stage`]s of a container's
//! life at which it runs. What is done here follows podman's Go code, down to its JSON and its regular
//! expressions; where others differ, a [`Consumer`] says how.
//!
//! [`Pipeline`] is the way from directories to a new configuration in one call, with what is asked of
//! hooks before they are injected, and a report of what happened. Its parts are calls of their own, of
//! which only the first does I/O, for whoever loads once and matches many containers:
//!
//! ```
//! use oci_hooks::hooks::{self, Config, InjectOptions, LoadOptions, consumer::PODMAN};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Load once ...
//! # let dir = tempfile::tempdir()?;
//! # std::fs::write(dir.path().join("a.json"), r#"{"version": "1.0.0", "hook": {"path": "/bin/true"},
//! #     "when": {"commands": ["sh$"]}, "stages": ["createRuntime"]}"#)?;
//! let mut options = LoadOptions::for_consumer(&PODMAN);
//! # options.dirs = vec![dir.path().into()];
//! let hooks = hooks::load(&options).into_strict()?;
//!
//! // ... and match any number of containers, from any thread.
//! let text = br#"{"ociVersion": "1.0.2", "process": {"args": ["/bin/sh"]}}"#;
//! let config = Config::parse(text)?;
//! let target = config.target(PODMAN.bind_mounts)?;
//! let selection = hooks.select(&target, &PODMAN)?;
//! let injected = config.inject(&selection, InjectOptions::default())?;
//! assert_eq!(
//!     injected,
//!     br#"{"ociVersion": "1.0.2", "process": {"args": ["/bin/sh"]},"hooks":{"createRuntime":[{"path":"/bin/true"}]}}"#
//! );
//! # Ok(())
//! # }
//! ```
//!
//! [`HookSet::evaluate`] tells of each hook whether it applies and which condition decided.

#[cfg(feature = "capture")]
pub mod capture;
mod config;
pub mod consumer;
#[cfg(feature = "directories")]
pub mod directories;
mod error;
pub mod filter;
mod hook;
#[cfg(feature = "lint")]
pub mod lint;
mod load;
pub mod manage;
pub mod migrate;
#[cfg(feature = "monitor")]
pub mod monitor;
#[cfg(feature = "oci-spec")]
mod oci_spec;
pub mod pattern;
pub mod pipeline;
mod schema;
mod set;
pub mod trust;
mod when;

pub use config::{Config, ConfigError, InjectOptions};
pub use consumer::Consumer;
pub use error::{Fault, HookError, MatchError, PatternPlace, Problem};
pub use filter::{FilterError, FilterOptions, FilterRun, Filtered, filter};
pub use hook::{Hook, OciStage, Stage};
pub use load::{Entry, EntryState, LoadOptions, Loaded, load};
#[cfg(feature = "monitor")]
pub use monitor::Monitor;
pub use pattern::{Pattern, PatternError};
pub use pipeline::{Pipeline, PipelineError};
pub use schema::{Definition, Draft, DraftWhen, PathCheck, SchemaOptions, Version};
pub use set::{HookFile, HookSet, Injection, Selection, Verdict, has_hook_files};
pub use when::{
    AnnotationPattern, Combine, Command, EmptyArgs, Evaluation, Reason, Target, TargetOverrides,
    When,
};
