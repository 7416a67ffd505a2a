//! Jobs of GitHub's container hooks (ADR 1891), independent of the backend.
//!
//! A program reads a [`HookRequest`](request::HookRequest) and passes it to [`HookContext::run`] with a
//! [`HookBackend`]. Requests are checked completely before a container is started ([`options`], [`policy`],
//! [`template`], [`volumes`]). Containers are found again by their owner, the
//! [`CallingRunner`](runner::CallingRunner), even if the call that started them was killed.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod audit;
mod backend;
mod build_cache;
mod context;
mod denial;
pub mod dockerfile;
mod error;
pub mod kubernetes;
pub mod options;
pub mod plan;
pub mod policy;
pub mod quantity;
pub mod request;
pub mod response;
mod role;
pub mod runner;
mod runner_files;
pub mod script;
pub mod service_names;
mod state;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod volumes;
pub mod words;

pub use backend::{HookBackend, RequestOutcome};
pub use build_cache::BuildCacheScope;
pub use context::{HookContext, HookLog, HookSettings};
pub use denial::NestingDenial;
pub use error::HookError;
pub use request::SecretText;
pub use runner_files::RunnerFiles;
pub use state::{JobState, PodState, StepAccess};
