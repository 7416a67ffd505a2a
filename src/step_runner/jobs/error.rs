//! Errors in starting and finding jobs.

use std::io;
use std::path::PathBuf;

use super::super::document::DocumentError;
use super::super::engine::StepError;
use super::super::log::LogError;
use super::super::resolve::reason;
use super::variables::VariableError;
use crate::sys::fs::PathError;

/// How much of the steps is quoted in errors: gRPC limits the size of error messages.
const MAX_STEPS_BYTES: usize = 1024;

/// Length limit of a job id.
pub(super) const MAX_ID_BYTES: usize = 1024;

/// An error in starting a job. Messages are those of GitLab's step-runner where it has one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The id is empty or too long.
    #[error("invalid job id: expected 1 to {MAX_ID_BYTES} bytes")]
    Id,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The maximum number of jobs is reached.
    #[error("too many jobs ({0}): close those that have ended")]
    TooManyJobs(usize),
    /// The steps cannot be parsed.
    #[error("loading step: reading steps {:?}: {error}", shortened(steps))]
    Steps { steps: String, error: DocumentError },
    #[error("preparing environment: {0}")]
    Variable(#[from] VariableError),
    /// The working directory cannot be created.
    #[error("initializing request: creating workdir {:?}: mkdir {}: {}", path, at.display(), reason(error))]
    WorkDir {
        path: PathBuf,
        /// The directory at which it failed: `path` or one of its parents.
        at: PathBuf,
        error: io::Error,
    },
    /// The log level is unknown.
    #[error(
        "initializing global environment: init global environment: log level: {0} not supported"
    )]
    LogLevel(String),
    /// The form of the log does not exist.
    #[error("initializing request: log format: {0} not supported: expected stamped or plain")]
    LogFormat(String),
    /// The job lacks required inputs.
    #[error("failed to start step runner service: {0}")]
    Check(#[from] StepError),
    /// The log cannot be created.
    #[error("initializing request: {0}")]
    Log(LogError),
    /// A file of the job cannot be created.
    #[error("initializing request: {}: {}", .0, reason(&.0.source))]
    Files(PathError),
    /// The system is out of threads or file descriptors.
    #[error("failed to start step runner service: {}", reason(.0))]
    Start(io::Error),
}

/// No job has this id.
#[derive(Debug, thiserror::Error)]
#[error("no job with id {id:?}")]
pub struct NoSuchJob {
    /// The id of the request.
    pub id: String,
}

fn shortened(steps: &str) -> String {
    if steps.len() <= MAX_STEPS_BYTES {
        return steps.to_owned();
    }
    let end = (0..=MAX_STEPS_BYTES).rev().find(|end| steps.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &steps[..end])
}
