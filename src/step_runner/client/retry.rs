//! Trying again.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::error::ClientError;

/// How often and how long a server is looked for again that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The time before the second attempt; it doubles with each.
    pub first: Duration,
    /// The longest time between two attempts.
    pub longest: Duration,
    /// When to give up, after the last time that the server was heard.
    pub give_up: Duration,
}

impl Default for Retry {
    /// At once, then every two seconds, for two minutes.
    fn default() -> Self {
        Retry {
            first: Duration::from_millis(50),
            longest: Duration::from_secs(2),
            give_up: Duration::from_secs(120),
        }
    }
}

/// Attempts since the server was heard last.
#[derive(Debug)]
pub(super) struct Attempts {
    retry: Retry,
    since: Instant,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new(retry: Retry) -> Self {
        Attempts { retry, since: Instant::now(), pause: retry.first }
    }

    /// Waits before the next attempt; returns the error if there is to be none.
    pub(super) async fn wait(&mut self, error: ClientError) -> Result<(), ClientError> {
        let is_over = self.since.elapsed() + self.pause > self.retry.give_up;
        if is_over || !matches!(error, ClientError::Unreachable { .. }) {
            return Err(error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.retry.longest);
        Ok(())
    }
}

/// Does something until the server answers.
pub(super) async fn retry<T, W>(retry: Retry, act: impl Fn() -> W) -> Result<T, ClientError>
where
    W: Future<Output = Result<T, ClientError>>,
{
    let mut attempts = Attempts::new(retry);
    loop {
        match act().await {
            Ok(done) => return Ok(done),
            Err(error) => attempts.wait(error).await?,
        }
    }
}
