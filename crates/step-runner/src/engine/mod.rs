//! Runs a job: its steps in sequence, each command in its own process group.
//!
//! A job takes and returns values ([`StepJob`], [`JobOutcome`]); the output of its commands goes to an
//! [`OutputSink`](super::log::OutputSink) unbuffered. Running a job blocks its thread.
//!
//! A step ends when its command exits: background processes continue, and their output is read, until the
//! job ends. Then they have 5 s to close their output, and are stopped.

mod cancel;
mod command;
mod error;
mod function;
mod job;
mod job_processes;
mod launcher;
mod pump;
mod record;
mod run;
mod scope;
mod work;

pub use cancel::{CancelHandle, CancelReason};
pub use error::{ExecError, LoadError, StepError, StepOutputError};
pub use job::{JobOutcome, StepJob};
pub use job_processes::{MARK, RecordedProcesses};
pub use launcher::Launcher;
pub use work::{WorkError, run_within};
