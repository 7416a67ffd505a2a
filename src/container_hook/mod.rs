//! GitHub's container hooks (ADR 1891): the runner's requests, carried out.
//!
//! A program reads a [`Request`](request::Request) and gives it to a [`Hook`]. Everything that was
//! asked for is checked before anything is started ([`options`], [`policy`], [`volumes`]); what is
//! started is found again by its owner, the [`Runner`], whatever became of the call that started it.

pub mod aliases;
mod alpine;
pub mod audit;
mod build;
mod cleanup_job;
mod confine;
mod error;
mod fetch;
mod give_back;
mod hook;
mod job;
mod launch;
mod log;
mod mounts;
mod network;
pub mod options;
mod plan;
pub mod pod;
pub mod policy;
mod prepare_job;
pub mod request;
pub mod response;
mod run_container_step;
mod run_script_step;
mod runner;
mod runner_files;
mod secret;
mod settings;
mod state;
pub mod template;
pub mod volumes;
pub mod words;
pub mod worker_log;

pub use build::{BuildError, BuildOptions, ContextError, RemovedBuilds, remove_builds};
pub use cleanup_job::{Abandoned, remove_abandoned};
pub use error::HookError;
pub use fetch::FetchError;
pub use hook::{Hook, Outcome};
pub use job::{Job, Lent};
pub use log::Log;
pub use network::Peer;
pub use runner::{JOB_VARIABLES, Runner};
pub use runner_files::{RunnerFiles, RunnerFilesError};
pub use secret::Secret;
pub use settings::Settings;
