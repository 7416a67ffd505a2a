//! Runs a job: its steps one after the other, each command in a process group of its own.
//!
//! A job is values in and values out ([`Job`], [`Outcome`]); what its commands write goes to an
//! [`Output`](super::log::Output) as they write it. It blocks its thread until it is over.
//!
//! A command that has ended has ended its step: processes that it left in the background live on,
//! and are heard, until the job ends; then they are killed.

mod cancel;
mod command;
mod error;
mod groups;
mod job;
mod pump;
mod record;
mod run;
mod scope;
mod step_files;

pub use cancel::{Cancel, Reason};
pub(super) use error::reason;
pub use error::{ExecError, LoadError, StepError, StepFileError};
pub use groups::kill_recorded;
pub use job::{Job, Outcome};
