//! One job, from its start until it is removed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::super::engine::{Cancel, Job, JobOutcome, Reason};
use super::super::log::{Follower, Log, LogReader};
use super::super::redact::{Redactor, Shared};
use super::super::resolve::Resolver;
use super::super::wire::proto::{StepResult, step_result::Status};
use super::event::{Event, Snapshot, Watcher};
use super::message::{masked_message, stopped_message};
use super::results::Results;
use super::settings::TimeLimit;
use super::state::JobDir;

/// Maximum time to wait for a killed job to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

const PANICKED: &str = "internal error: the thread of the job panicked";

/// A job.
#[derive(Debug)]
pub(super) struct Entry {
    state: watch::Sender<Snapshot>,
    log: LogReader,
    pub(super) results: Results,
    cancel: Cancel,
    /// Time for a cancelled job to end before it is killed.
    cancel_timeout: Duration,
    /// Whether the thread of the job has released all resources.
    is_over: watch::Sender<bool>,
    files: Mutex<JobFiles>,
}

#[derive(Debug)]
struct JobFiles {
    /// The files, until the job has ended and is removed.
    dir: Option<JobDir>,
    ended: Option<Instant>,
    is_removed: bool,
}

impl JobFiles {
    /// Returns the files to remove if the job has ended and is removed. Readers of the log keep it open.
    fn clear(&mut self) -> Option<JobDir> {
        if self.is_removed && self.ended.is_some() { self.dir.take() } else { None }
    }
}

/// Resources of the thread that runs a job.
pub(super) struct Work {
    pub(super) job: Job,
    pub(super) resolver: Resolver,
    pub(super) log: Log,
    pub(super) watcher: Watcher,
    /// The secrets with which the log was created.
    pub(super) redactor: Redactor,
    /// Whether results have secrets in clear.
    pub(super) show_secrets: bool,
    /// What the job's maximum run time is.
    pub(super) limit: TimeLimit,
}

impl Entry {
    pub(super) fn new(
        id: &str,
        dir: JobDir,
        work: &Work,
        results: Results,
        cancel: Cancel,
    ) -> Self {
        let snapshot = Snapshot {
            id: id.to_owned(),
            status: Status::Unspecified,
            message: String::new(),
            exit_code: 0,
            start: None,
            end: None,
        };
        Entry {
            state: watch::Sender::new(snapshot),
            log: work.log.reader(),
            results,
            cancel,
            cancel_timeout: work.job.grace + work.job.cleanup,
            is_over: watch::Sender::new(false),
            files: Mutex::new(JobFiles { dir: Some(dir), ended: None, is_removed: false }),
        }
    }

    /// Runs the job to its end.
    pub(super) fn work(self: Arc<Self>, work: Work) {
        let Work { job, resolver, mut log, watcher, redactor, show_secrets, limit } = work;
        self.state.send_modify(|state| {
            state.status = Status::Running;
            state.start = Some(SystemTime::now());
        });
        let mut lost = None;
        let mut ended = |result: &StepResult| {
            let pushed = match show_secrets {
                true => self.results.push(result),
                false => self.results.push(&redactor.result(result)),
            };
            if let Err(error) = pushed {
                lost.get_or_insert(error);
            }
        };
        let mut output = Shared { output: &mut log, redactor: &redactor };
        let outcome = guarded(|| job.run(&resolver, &mut output, &self.cancel, &mut ended));
        let outcome = outcome.unwrap_or_else(|| {
            let outcome = panicked();
            ended(&outcome.result);
            outcome
        });
        let message = stopped_message(&outcome, self.cancel.reason(), limit);
        let message = masked_message(&message, &redactor);
        // Before the log ends: a client that has read all of it finds the job ended.
        let end = SystemTime::now();
        self.state.send_if_modified(|state| {
            // It was given up meanwhile: what ended stays as it ended.
            if state.end.is_some() {
                return false;
            }
            state.status = outcome.status;
            state.exit_code = outcome.exit_code;
            state.message = match lost {
                Some(error) => format!("results of steps are lost: {error}: {message}"),
                None => message,
            };
            state.end = Some(end);
            true
        });
        // The log itself reports write errors.
        drop(log);
        watcher.notify(&Event::Ended(&self.snapshot()));
        let mut files = self.files();
        files.ended = Some(Instant::now());
        let dir = files.clear();
        drop(files);
        drop(dir);
        self.is_over.send_replace(true);
    }

    /// Returns the current status.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.state.borrow().clone()
    }

    /// Returns when the job ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.files().ended
    }

    /// Follows the log from an offset in bytes.
    pub(super) fn follow(&self, offset: u64) -> Follower {
        self.log.follow(offset)
    }

    /// Waits until the job has ended.
    pub(super) async fn finished(&self) {
        // It cannot fail: the sender is a field of this.
        let _ = self.state.subscribe().wait_for(Snapshot::is_finished).await;
    }

    /// Cancels the job if it runs and is not cancelled yet. Returns whether it did.
    pub(super) fn cancel(&self) -> bool {
        let is_first = !self.snapshot().is_finished() && self.cancel.reason().is_none();
        if is_first {
            self.cancel.stop(Reason::Asked);
        }
        is_first
    }

    /// Cancels the job, and waits until it has ended; gives up if it does not end when killed.
    pub(super) async fn stop(&self) {
        if !self.snapshot().is_finished() {
            self.cancel.stop(Reason::Asked);
            if tokio::time::timeout(self.cancel_timeout, self.finished()).await.is_err() {
                self.cancel.cancel(Reason::Asked);
            }
        }
        // Its status is final a moment before its thread releases its files.
        let mut is_over = self.is_over.subscribe();
        let is_over = is_over.wait_for(|is_over| *is_over);
        if tokio::time::timeout(KILL_TIMEOUT, is_over).await.is_err() {
            self.give_up();
        }
    }

    /// Ends a job whose thread does not return from the kernel. Its files are removed when it does.
    fn give_up(&self) {
        self.state.send_if_modified(|state| {
            let is_running = state.end.is_none();
            if is_running {
                state.status = Status::Cancelled;
                state.exit_code = 1;
                state.message = "the job was cancelled, but hangs in the kernel".to_owned();
                state.end = Some(SystemTime::now());
            }
            is_running
        });
    }

    /// Removes the files, now or when the job has ended.
    pub(super) fn remove(&self) {
        let mut files = self.files();
        files.is_removed = true;
        let dir = files.clear();
        drop(files);
        drop(dir);
    }

    fn files(&self) -> std::sync::MutexGuard<'_, JobFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a job; returns `None` if that panics, which is a bug.
fn guarded(run: impl FnOnce() -> JobOutcome) -> Option<JobOutcome> {
    // The panic message is on standard error.
    catch_unwind(AssertUnwindSafe(run)).ok()
}

/// Returns the outcome of a job that panicked: it fails, but the server continues.
fn panicked() -> JobOutcome {
    JobOutcome {
        status: Status::Failure,
        message: PANICKED.to_owned(),
        error: PANICKED.to_owned(),
        exit_code: 1,
        result: StepResult { status: Status::Failure.into(), ..StepResult::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_job_alone() {
        assert!(guarded(|| panic!("for this test")).is_none());
        assert_eq!(guarded(panicked).unwrap().status, Status::Failure);
    }
}
