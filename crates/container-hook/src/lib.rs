//! GitHub's container hooks (ADR 1891): runs the requests of the runner.
//!
//! A program reads a [`HookRequest`](request::HookRequest) and passes it to [`HookContext::run`] with a
//! [`HookBackend`]: [`engine`] runs the containers of jobs on this host, `kubernetes` as pods of a cluster.
//! Requests are checked completely before a container is started ([`options`], [`policy`], [`volumes`]).
//! Containers are found again by their owner, the [`CallingRunner`], even if the call that started them was killed.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod audit;
mod backend;
mod build_cache;
mod context;
mod denial;
mod dockerfile;
pub mod engine;
mod error;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod options;
mod plan;
pub mod policy;
mod quantity;
pub mod request;
pub mod response;
mod role;
mod runner;
mod runner_files;
mod script;
pub mod service_names;
mod state;
pub mod template;
pub mod volumes;
pub mod words;

pub use backend::{HookBackend, RequestOutcome};
pub use build_cache::BuildCache;
pub use context::{HookContext, HookLog, HookSettings};
pub use denial::NestingDenial;
pub use dockerfile::{ConfigureError, ContextError};
pub use error::HookError;
pub use request::SecretText;
pub use runner::{CallingRunner, JOB_VARIABLES, RunnerDefaults};
pub use runner_files::RunnerFiles;
pub use state::{JobState, PodState, StepAccess};
