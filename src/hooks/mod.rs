//! hooks.d: load hook files, match them against a container, inject what matches.
//!
//! Hook files are JSON files in directories that podman, CRI-O and others read. Each names a
//! program ([`Hook`]), the conditions under which it applies ([`HookConditions`]), and the [`HookStage`]s of a
//! container's life at which it runs. This module follows podman's Go code, including its JSON and
//! regular expressions; a [`Consumer`] describes where others differ.
//!
//! [`Pipeline`] goes from directories to a new configuration in one call: it checks hooks, injects
//! them and returns a report. Its steps are also separate calls, of which only the first does I/O,
//! for callers that load once and match many containers:
//!
//! ```
//! use oci_hooks::hooks::{self, ConfigDocument, InjectOptions, LoadOptions, consumer::PODMAN};
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
//! let config = ConfigDocument::parse(text)?;
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
//! [`HookSet::evaluate`] returns for each hook whether it applies and which condition decided.

#[cfg(feature = "cli")]
pub mod capture;
mod config;
pub mod consumer;
#[cfg(feature = "cli")]
pub mod directories;
#[cfg(feature = "cdi")]
pub(crate) mod entries;
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
mod oci_spec;
pub mod pattern;
pub mod pipeline;
mod schema;
mod set;
pub mod trust;
mod when;

pub use config::{ConfigDocument, ConfigError, InjectOptions};
pub use consumer::Consumer;
pub use error::{HookError, HookFault, LoadProblem, MatchError, PatternPlace};
pub use filter::{FilterError, FilterOptions, FilterRun, FilteredConfig, filter};
pub use hook::{Hook, HookStage, OciStage};
pub use load::{EntryState, LoadOptions, LoadedEntry, LoadedHooks, load};
#[cfg(feature = "monitor")]
pub use monitor::Monitor;
pub use oci_spec::{FilterSpecError, PathNotText, filter_spec};
pub use pattern::{Pattern, PatternError};
pub use pipeline::{Pipeline, PipelineError};
pub use schema::{
    DraftConditions, HookDefinition, HookDraft, ParseOptions, PathCheck, SchemaVersion,
};
pub use set::{HookFile, HookInjection, HookSelection, HookSet, HookVerdict, has_hook_files};
pub use when::{
    AnnotationPattern, CombineRule, EmptyArgs, HookConditions, MatchEvaluation, MatchReason,
    MatchTarget, TargetCommand, TargetOverrides,
};
