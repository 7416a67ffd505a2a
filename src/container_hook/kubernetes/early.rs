//! The stream to a container that is about to start. The kubelet takes it as soon as the container runs, up to
//! a second before the API server says that it does.

use std::cell::Cell;
use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;

use super::agent::{Link, Opener};
use super::client::ClusterOpener;

/// The first and the longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Opens streams to a container that need not run yet: whoever waits for its pod says when it does, and until
/// then nothing that fails counts.
pub struct EarlyOpener<'a> {
    opener: ClusterOpener<'a>,
    is_running: Cell<bool>,
}

impl<'a> EarlyOpener<'a> {
    pub(super) fn new(opener: ClusterOpener<'a>) -> Self {
        EarlyOpener { opener, is_running: Cell::new(false) }
    }

    /// Notes that the container runs: what fails from now on is a failure.
    pub fn is_running(&self) {
        self.is_running.set(true);
    }
}

impl Opener for EarlyOpener<'_> {
    fn open(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<Link, Box<dyn Error + Send + Sync>>> + '_>> {
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
}
