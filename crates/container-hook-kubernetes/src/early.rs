//! The stream to a container that is about to start. The kubelet accepts it as soon as the container runs, up
//! to a second before the API server reports the container as running.

use std::cell::Cell;
use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;

use super::agent::{AgentLink, LinkOpener};
use super::client::ClusterOpener;

/// First and longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Opens streams to a container that may not run yet. Failures are ignored until [`Self::mark_running()`] is
/// called.
pub struct EarlyOpener<'a> {
    opener: ClusterOpener<'a>,
    is_running: Cell<bool>,
}

impl<'a> EarlyOpener<'a> {
    pub(super) fn new(opener: ClusterOpener<'a>) -> Self {
        EarlyOpener { opener, is_running: Cell::new(false) }
    }

    /// Records that the container runs: later failures are reported.
    pub fn mark_running(&self) {
        self.is_running.set(true);
    }
}

impl LinkOpener for EarlyOpener<'_> {
    fn open(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<AgentLink, Box<dyn Error + Send + Sync>>> + '_>> {
        Box::pin(async {
            let mut pause = PAUSES.0;
            while !self.is_running.get() {
                if let Some(link) = self.opener.try_open().await {
                    return Ok(link);
                }
                sleep(pause).await;
                pause = PAUSES.1.min(pause * 6 / 5);
            }
            self.opener.open().await
        })
    }

    fn describe(&self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        self.opener.describe()
    }
}
