//! GitHub's container hooks (ADR 1891): the runner's requests, carried out.
//!
//! A program reads a [`Request`](request::Request) and gives it to [`HookContext::run`] with a
//! [`Backend`]: [`engine`] runs the containers of jobs on this host, `kubernetes` as pods of a cluster.
//! Everything that was asked for is checked before anything is started ([`options`], [`policy`],
//! [`volumes`]); what is started is found again by its owner, the [`Runner`], whatever became of the
//! call that started it.

pub mod audit;
mod backend;
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

pub use backend::{Backend, Outcome};
pub use context::{HookContext, Log, Settings};
pub use denial::Denial;
pub use dockerfile::{ConfigureError, ContextError};
pub use error::HookError;
pub use request::Secret;
pub use runner::{JOB_VARIABLES, Runner, RunnerDefaults};
pub use runner_files::RunnerFiles;
pub use state::{JobState, PodState, StepAccess};
