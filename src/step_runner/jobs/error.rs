//! Why a job is not started, or not there.

use std::io;
use std::path::PathBuf;

use super::super::document::DocumentError;
use super::super::engine::{StepError, reason};
use super::super::log::LogError;
use super::variables::VariableError;
use crate::sys::fs::PathError;

/// How much of the steps is told again: an answer that is too long does not arrive.
const MAX_STEPS_BYTES: usize = 1024;

/// How long an id may be.
pub(super) const MAX_ID_BYTES: usize = 1024;

/// Why a job was not started. The messages are those of GitLab's step-runner where it has one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The request has no id, or a strange one.
    #[error("the id of a job must have 1 to {MAX_ID_BYTES} bytes")]
    Id,
    /// The server is about to end.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// There are too many jobs.
    #[error("there are {0} jobs already; close those that have ended")]
    TooManyJobs(usize),
    /// The steps cannot be read.
    #[error("loading step: reading steps {:?}: {error}", shortened(steps))]
    Steps {
        /// The steps.
        steps: String,
        /// Why.
        error: DocumentError,
    },
    /// A variable cannot be taken as it is.
    #[error("preparing environment: {0}")]
    Variable(#[from] VariableError),
    /// The directory to work in cannot be made.
    #[error("initializing request: creating workdir {:?}: mkdir {}: {}", path, at.display(), reason(error))]
    WorkDir {
        /// The directory.
        path: PathBuf,
        /// Which of the directories above it, or itself.
        at: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is no such level of messages.
    #[error(
        "initializing global environment: init global environment: log level: {0} not supported"
    )]
    LogLevel(String),
    /// The steps do not fit the request.
    #[error("failed to start step runner service: {0}")]
    Check(#[from] StepError),
    /// The log cannot be begun.
    #[error("initializing request: {0}")]
    Log(LogError),
    /// A file of the job cannot be made.
    #[error("initializing request: {}: {}", .0, reason(&.0.source))]
    Files(PathError),
    /// The system has no more threads or descriptors.
    #[error("failed to start step runner service: {}", reason(.0))]
    Start(io::Error),
}

/// Why a job cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[error("no job with id {id:?}")]
pub struct NoSuchJob {
    /// The id that no job has.
    pub id: String,
}

fn shortened(steps: &str) -> String {
    if steps.len() <= MAX_STEPS_BYTES {
        return steps.to_owned();
    }
    let end = (0..=MAX_STEPS_BYTES).rev().find(|end| steps.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &steps[..end])
}
