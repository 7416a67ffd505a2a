//! Retrying calls while the server is unreachable.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::error::ClientError;

/// How often and how long to retry while the server is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Delay before the second attempt; it doubles with each attempt.
    pub first: Duration,
    /// Maximum delay between two attempts.
    pub longest: Duration,
    /// Time without a response after which to give up.
    pub give_up: Duration,
}

impl Default for Retry {
    /// 50 ms, doubling up to 2 s, for two minutes.
    fn default() -> Self {
        Retry {
            first: Duration::from_millis(50),
            longest: Duration::from_secs(2),
            give_up: Duration::from_secs(120),
        }
    }
}

impl Retry {
    /// Sets the time without a response after which to give up.
    #[must_use]
    pub fn giving_up_after(self, give_up: Duration) -> Self {
        Retry { give_up, ..self }
    }
}

/// Attempts since the last response of the server.
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

    /// Waits before the next attempt; returns the error if it is time to give up.
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

/// Calls `act` until the server responds.
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
