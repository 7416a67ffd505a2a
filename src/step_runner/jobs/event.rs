//! What happens to jobs, for whoever keeps an eye on the server.

use std::fmt;
use std::sync::Arc;

use super::super::wire::proto::step_result::Status;
use super::entry::Snapshot;
use super::error::RunError;

/// What happened to a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It was started.
    Started {
        /// The job.
        id: &'a str,
    },
    /// It was not started.
    Refused {
        /// The job.
        id: &'a str,
        /// Why.
        error: &'a RunError,
    },
    /// It has ended.
    Ended(&'a Snapshot),
    /// A client has closed it.
    Closed {
        /// The job.
        id: &'a str,
    },
    /// It was forgotten, because it had ended long ago and nobody closed it.
    Pruned {
        /// The job.
        id: &'a str,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Started { id } => write!(f, "job {id:?}: started"),
            Event::Refused { id, error } => write!(f, "job {id:?}: not started: {error}"),
            Event::Ended(Snapshot { id, status, message, .. }) => match status {
                Status::Success => write!(f, "job {id:?}: succeeded"),
                Status::Cancelled => write!(f, "job {id:?}: was cancelled: {message}"),
                _ => write!(f, "job {id:?}: failed: {message}"),
            },
            Event::Closed { id } => write!(f, "job {id:?}: closed"),
            Event::Pruned { id } => write!(f, "job {id:?}: forgotten, nobody closed it"),
        }
    }
}

/// Is told what happens.
#[derive(Clone)]
pub(super) struct Watcher(pub(super) Arc<dyn Fn(&Event<'_>) + Send + Sync>);

impl Watcher {
    pub(super) fn tell(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}
