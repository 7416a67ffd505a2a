//! Following the results of a job's steps.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;

use super::super::wire::proto::StepResult;
use super::entry::Entry;

/// Follows the results of a job's steps in the order in which they end; that of the job is the last.
#[derive(Debug)]
pub struct Steps {
    entry: Arc<Entry>,
    next: usize,
    count: watch::Receiver<usize>,
}

impl Steps {
    pub(super) fn new(entry: Arc<Entry>, skip: usize) -> Self {
        let count = entry.results.watch();
        Steps { entry, next: skip, count }
    }

    /// Waits for the next result; `None` when the job has ended.
    pub async fn next(&mut self) -> io::Result<Option<StepResult>> {
        loop {
            // Checked first: results are added before a job ends.
            let is_finished = self.entry.snapshot().is_finished();
            if let Some(result) = self.entry.results.get(self.next)? {
                self.next += 1;
                return Ok(Some(result));
            }
            if is_finished {
                return Ok(None);
            }
            self.wait().await;
        }
    }

    /// Waits until there is another result, or the job has ended.
    async fn wait(&mut self) {
        let Steps { entry, next, count } = self;
        let more = async {
            // It cannot fail: the entry has the sender.
            let _ = count.wait_for(|count| count > next).await;
        };
        super::either::either(more, entry.finished()).await;
    }
}
