//! Errors of the client, and retries.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

/// An error of a call to the server.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server rejected the request; `status` is its response.
    #[error("{}", status.message())]
    Rejected { status: Box<Status> },
    /// The server cannot be reached, or the connection was lost.
    #[error("cannot reach the server{}", suffix(stderr))]
    Unreachable {
        /// Last lines of stderr of [`ServerAddress::Command`](super::ServerAddress::Command).
        stderr: String,
        /// Error of the last connection.
        #[source]
        source: ConnectionError,
    },
    /// The server no longer knows a job that it had accepted: it was restarted, or another client
    /// closed the job.
    #[error("job {id:?} lost: the server was restarted, or another client closed the job")]
    Lost { id: String },
}

/// A failed or lost connection to the server: the message of the innermost cause of the gRPC error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectionError(String);

impl ConnectionError {
    /// Returns the innermost cause of a status: the outer errors only repeat its message.
    fn new(status: &Status) -> Self {
        let mut cause = None;
        let mut next = status.source();
        while let Some(error) = next {
            cause = Some(error.to_string());
            next = error.source();
        }
        ConnectionError(cause.unwrap_or_else(|| status.message().to_owned()))
    }
}

impl ClientError {
    pub(super) fn new(status: Status, stderr: String) -> Self {
        if is_lost_connection(&status) {
            ClientError::Unreachable { stderr, source: ConnectionError::new(&status) }
        } else {
            ClientError::Rejected { status: Box::new(status) }
        }
    }

    /// Returns the gRPC code of the response; `Unavailable` if there was none, `NotFound` for a lost job.
    pub fn code(&self) -> Code {
        match self {
            ClientError::Rejected { status } => status.code(),
            ClientError::Unreachable { .. } => Code::Unavailable,
            ClientError::Lost { .. } => Code::NotFound,
        }
    }

    /// Returns whether the server has responded that it does not know the job.
    pub(super) fn is_no_such_job(&self) -> bool {
        match self {
            ClientError::Rejected { status } => {
                status.code() == Code::NotFound || status.message().starts_with("no job with id ")
            }
            _ => false,
        }
    }
}

/// Returns whether a status comes from a lost connection, not from the server.
fn is_lost_connection(status: &Status) -> bool {
    // Only a status that the server did not send has a source.
    status.code() == Code::Unavailable || status.source().is_some()
}

fn suffix(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(" (stderr of the command that connects: {text})")
    }
}

/// Delay before the second attempt to reach the server; it doubles with each attempt.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// Maximum delay between two attempts.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// Retries of a call since the last response of the server.
#[derive(Debug)]
pub struct RetryAttempts {
    /// Time without a response from the server after which the call is no longer retried.
    give_up: Duration,
    since: Instant,
    pause: Duration,
}

impl RetryAttempts {
    pub(super) fn new(give_up: Duration) -> Self {
        RetryAttempts { give_up, since: Instant::now(), pause: FIRST_DELAY }
    }

    /// Waits before the next attempt. Returns the error instead if the server responded, or the
    /// time for retries is over.
    pub(super) async fn wait(&mut self, error: ClientError) -> Result<(), ClientError> {
        let is_over = self.since.elapsed() + self.pause > self.give_up;
        if is_over || !matches!(error, ClientError::Unreachable { .. }) {
            return Err(error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_DELAY);
        Ok(())
    }
}

/// Calls `act` until the server responds, or has not responded for the time `give_up`.
pub async fn retry<T, W>(give_up: Duration, act: impl Fn() -> W) -> Result<T, ClientError>
where
    W: Future<Output = Result<T, ClientError>>,
{
    let mut attempts = RetryAttempts::new(give_up);
    loop {
        match act().await {
            Ok(done) => return Ok(done),
            Err(error) => attempts.wait(error).await?,
        }
    }
}
