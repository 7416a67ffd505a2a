//! Why the server did not do what it was asked for.

use std::error::Error as _;

use tonic::{Code, Status};

/// Why the server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// It does not do it.
    #[error("{}", status.message())]
    Refused {
        /// What it answered.
        status: Box<Status>,
    },
    /// It cannot be reached, or not any more.
    #[error("cannot reach the server{}", said(said_by_command))]
    Unreachable {
        /// What the command said, if a command connects.
        said_by_command: String,
        /// What happened to the last connection.
        #[source]
        status: Box<Status>,
    },
    /// It does not know a job any more that it had taken: it was started anew, or somebody else has
    /// closed the job.
    #[error("the server has lost job {id:?}")]
    Lost {
        /// The job.
        id: String,
    },
}

impl ClientError {
    pub(super) fn new(status: Status, said_by_command: String) -> Self {
        let status = Box::new(status);
        if is_lost_connection(&status) {
            ClientError::Unreachable { said_by_command, status }
        } else {
            ClientError::Refused { status }
        }
    }

    /// Returns the code that the server answered with; `Unavailable` if it did not answer.
    pub fn code(&self) -> Code {
        match self {
            ClientError::Refused { status } => status.code(),
            ClientError::Unreachable { .. } => Code::Unavailable,
            ClientError::Lost { .. } => Code::NotFound,
        }
    }

    /// Tells if the server knows no such job.
    pub(super) fn is_no_such_job(&self) -> bool {
        match self {
            ClientError::Refused { status } => {
                status.code() == Code::NotFound || status.message().starts_with("no job with id ")
            }
            _ => false,
        }
    }
}

/// Tells an answer of the server from what happened to the connection.
pub(super) fn is_lost_connection(status: &Status) -> bool {
    // Only what was not sent by the server has a cause.
    status.code() == Code::Unavailable || status.source().is_some()
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(", {text}") }
}
