//! The status of jobs, events for the log of the server, and errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use std::{fmt, io};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;
use serde::{Deserialize, Serialize};

use super::super::document::DocumentError;
use super::super::engine::StepError;
use super::super::log::LogError;
use super::super::resolve::reason;
use super::super::wire::proto::step_result::Status;
use super::variables::VariableError;

/// Status of a job at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobSnapshot {
    pub id: String,
    /// Unspecified until the thread of the job runs, then running, then the final status.
    #[serde(with = "StatusName")]
    pub status: Status,
    /// Error message, which ends with the exit code if a command failed.
    pub message: String,
    /// Exit code of the command that failed; 1 if the job failed otherwise, else 0.
    pub exit_code: i32,
    pub start: Option<SystemTime>,
    pub end: Option<SystemTime>,
}

/// Names of each [`Status`] in records of jobs.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Status", rename_all = "lowercase")]
enum StatusName {
    Unspecified,
    Running,
    Success,
    Failure,
    Cancelled,
}

impl JobSnapshot {
    /// Returns whether the job has ended.
    pub fn is_finished(&self) -> bool {
        self.end.is_some()
    }
}

/// An event in the life of a job.
#[derive(Debug)]
pub enum JobEvent<'a> {
    /// The thread of the job was started.
    Started { id: &'a str },
    /// A job could not be started: the request is invalid, the job's resources could not be
    /// created, or the server is shutting down.
    NotStarted { id: &'a str, error: &'a RunError },
    /// The job has ended; the snapshot has its final status.
    Ended(&'a JobSnapshot),
    /// A client has asked to stop the job.
    Cancelled { id: &'a str },
    /// A client has closed the job.
    Closed { id: &'a str },
    /// The job was removed some time after its end, as no client had closed it.
    Pruned { id: &'a str },
}

impl fmt::Display for JobEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobEvent::Started { id } => write!(f, "job {id:?}: started"),
            JobEvent::NotStarted { id, error } => write!(f, "job {id:?}: not started: {error}"),
            JobEvent::Ended(JobSnapshot { id, status, message, .. }) => match status {
                Status::Success => write!(f, "job {id:?}: succeeded"),
                Status::Cancelled => write!(f, "job {id:?}: cancelled: {message}"),
                _ => write!(f, "job {id:?}: failed: {message}"),
            },
            JobEvent::Cancelled { id } => write!(f, "job {id:?}: cancellation requested"),
            JobEvent::Closed { id } => write!(f, "job {id:?}: closed"),
            JobEvent::Pruned { id } => write!(f, "job {id:?}: pruned: never closed"),
        }
    }
}

/// Callback that is called for each event in the life of a job.
pub type EventWatcher = Arc<dyn Fn(&JobEvent<'_>) + Send + Sync>;

/// Maximum length of the steps quoted in errors: gRPC limits the size of error messages.
const MAX_STEPS_BYTES: usize = 1024;

/// Length limit of a job id.
pub const MAX_ID_BYTES: usize = 1024;

/// An error in starting a job. Messages are those of GitLab's step-runner where it has one.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The id is empty or too long.
    #[error("invalid job id: expected 1 to {MAX_ID_BYTES} bytes")]
    Id,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The maximum number of jobs is reached.
    #[error("too many jobs ({0}): close finished jobs, or raise --max-jobs of serve")]
    TooManyJobs(usize),
    /// The limit of open files is too low for another job.
    #[error(
        "too few file descriptors for another job: {running} jobs run, and this server may open {limit} \
         files: close finished jobs, or raise the server's hard limit of open files"
    )]
    Descriptors { running: usize, limit: u64 },
    /// The steps cannot be parsed.
    #[error("loading step: reading steps {:?}: {error}", shorten_steps(steps))]
    Steps { steps: String, error: DocumentError },
    #[error("preparing environment: {0}")]
    Variable(#[from] VariableError),
    /// The working directory cannot be created.
    #[error("initializing request: creating workdir {:?}: mkdir {}: {}", path, at.display(), reason(error))]
    WorkDir {
        path: PathBuf,
        /// The directory that could not be created: `path` or one of its parents.
        at: PathBuf,
        error: io::Error,
    },
    /// The log level is unknown.
    #[error(
        "initializing global environment: init global environment: log level: {0} not supported"
    )]
    LogLevel(String),
    /// The log format is unknown.
    #[error("initializing request: log format: {0} not supported: expected stamped or plain")]
    LogFormat(String),
    /// The job lacks required inputs.
    #[error("failed to start step runner service: {0}")]
    Check(#[from] StepError),
    /// The log cannot be created.
    #[error("initializing request: {}", chain(.0))]
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
    /// The requested id.
    pub id: String,
}

fn shorten_steps(steps: &str) -> String {
    if steps.len() <= MAX_STEPS_BYTES {
        return steps.to_owned();
    }
    let end = (0..=MAX_STEPS_BYTES).rev().find(|end| steps.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &steps[..end])
}
