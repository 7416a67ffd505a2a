//! The status of jobs, events for the log of the server, and errors.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::super::document::DocumentError;
use super::super::engine::StepError;
use super::super::log::LogError;
use super::super::resolve::reason;
use super::super::wire::proto::step_result::Status;
use super::variables::VariableError;
use crate::sys::fs::PathError;

/// Status of a job at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    pub id: String,
    /// Running, or how it ended.
    pub status: Status,
    /// Error message, which ends with the exit code if a command failed.
    pub message: String,
    /// Exit code of the command that failed.
    pub exit_code: i32,
    pub start: Option<SystemTime>,
    pub end: Option<SystemTime>,
}

impl Snapshot {
    /// Returns whether the job has ended.
    pub fn is_finished(&self) -> bool {
        self.end.is_some()
    }
}

/// An event in the life of a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    Started {
        id: &'a str,
    },
    NotStarted {
        id: &'a str,
        error: &'a RunError,
    },
    Ended(&'a Snapshot),
    /// A client has asked to stop the job.
    Cancelled {
        id: &'a str,
    },
    /// A client has closed the job.
    Closed {
        id: &'a str,
    },
    /// The job was removed some time after its end, as no client had closed it.
    Pruned {
        id: &'a str,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Started { id } => write!(f, "job {id:?}: started"),
            Event::NotStarted { id, error } => write!(f, "job {id:?}: not started: {error}"),
            Event::Ended(Snapshot { id, status, message, .. }) => match status {
                Status::Success => write!(f, "job {id:?}: succeeded"),
                Status::Cancelled => write!(f, "job {id:?}: cancelled: {message}"),
                _ => write!(f, "job {id:?}: failed: {message}"),
            },
            Event::Cancelled { id } => write!(f, "job {id:?}: asked to stop"),
            Event::Closed { id } => write!(f, "job {id:?}: closed"),
            Event::Pruned { id } => write!(f, "job {id:?}: pruned: never closed"),
        }
    }
}

/// Callback for events.
#[derive(Clone)]
pub struct Watcher(pub Arc<dyn Fn(&Event<'_>) + Send + Sync>);

impl Watcher {
    pub(super) fn notify(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// How much of the steps is quoted in errors: gRPC limits the size of error messages.
const MAX_STEPS_BYTES: usize = 1024;

/// Length limit of a job id.
pub const MAX_ID_BYTES: usize = 1024;

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
