//! The status of jobs, and events, for the log of the server.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::super::wire::proto::step_result::Status;
use super::error::RunError;

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
pub(super) struct Watcher(pub(super) Arc<dyn Fn(&Event<'_>) + Send + Sync>);

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
