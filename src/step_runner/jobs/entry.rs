//! One job, from its start until it is forgotten.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::super::engine::{Cancel, Job, Outcome, Reason};
use super::super::log::{Follower, Log, LogReader, Masking};
use super::super::resolve::Resolver;
use super::super::wire::proto::{StepResult, step_result::Status};
use super::event::{Event, Watcher};
use super::message::{Heard, told};
use super::results::Results;
use super::state::JobDir;

/// How long what was killed may take to be gone.
const KILLED: Duration = Duration::from_secs(2);

/// The state of a job.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// Running, or how it ended.
    pub status: Status,
    /// Why it failed; the exit code of a command that failed is the number at its end.
    pub message: String,
    /// The code of the command that failed.
    pub exit_code: i32,
    /// When it began.
    pub start: Option<SystemTime>,
    /// When it ended.
    pub end: Option<SystemTime>,
}

impl Snapshot {
    /// Tells if the job has ended.
    pub fn is_finished(&self) -> bool {
        self.end.is_some()
    }
}

/// A job.
#[derive(Debug)]
pub(super) struct Entry {
    state: watch::Sender<Snapshot>,
    log: LogReader,
    pub(super) results: Results,
    cancel: Cancel,
    /// How long a cancelled job may take to end by itself.
    patience: Duration,
    /// Whether its thread has let go of everything.
    is_over: watch::Sender<bool>,
    place: Mutex<Place>,
}

#[derive(Debug)]
struct Place {
    /// The files, until the job has ended and is forgotten.
    dir: Option<JobDir>,
    ended: Option<Instant>,
    is_forgotten: bool,
}

impl Place {
    /// Removes the files if nobody needs them any more. Who reads the log has it open.
    fn clear(&mut self) -> Option<JobDir> {
        if self.is_forgotten && self.ended.is_some() { self.dir.take() } else { None }
    }
}

/// What a job's thread has.
pub(super) struct Work {
    pub(super) job: Job,
    pub(super) resolver: Resolver,
    pub(super) log: Log,
    pub(super) watcher: Watcher,
    /// What the log was begun with.
    pub(super) masking: Masking,
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
            patience: work.job.grace + work.job.cleanup,
            is_over: watch::Sender::new(false),
            place: Mutex::new(Place { dir: Some(dir), ended: None, is_forgotten: false }),
        }
    }

    /// Runs the job to its end.
    pub(super) fn work(self: Arc<Self>, work: Work) {
        let Work { job, resolver, mut log, watcher, masking } = work;
        self.state.send_modify(|state| {
            state.status = Status::Running;
            state.start = Some(SystemTime::now());
        });
        let mut lost = None;
        let mut ended = |result: &StepResult| {
            if let Err(error) = self.results.push(result) {
                lost.get_or_insert(error);
            }
        };
        let mut output = Heard { log: &mut log, secrets: masking };
        let outcome = guarded(|| job.run(&resolver, &mut output, &self.cancel, &mut ended));
        let outcome = outcome.unwrap_or_else(|| {
            let outcome = panicked();
            ended(&outcome.result);
            outcome
        });
        let message = told(&outcome.message, &output.secrets);
        // Before the log ends: who has read all of it finds the job ended.
        let end = SystemTime::now();
        self.state.send_modify(|state| {
            state.status = outcome.status;
            state.exit_code = outcome.exit_code;
            state.message = match lost {
                Some(error) => format!("results of steps are lost: {error}: {message}"),
                None => message,
            };
            state.end = Some(end);
        });
        // If something could not be written the log says so itself.
        drop(log);
        watcher.tell(&Event::Ended(&self.snapshot()));
        let mut place = self.place();
        place.ended = Some(Instant::now());
        let dir = place.clear();
        drop(place);
        drop(dir);
        self.is_over.send_replace(true);
    }

    /// Returns how it is now.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.state.borrow().clone()
    }

    /// Returns when it ended.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.place().ended
    }

    /// Reads the log from an offset on.
    pub(super) fn follow(&self, offset: u64) -> Follower {
        self.log.follow(offset)
    }

    /// Waits until the job has ended.
    pub(super) async fn finished(&self) {
        // It fails when the sender is gone, and this has it.
        let _ = self.state.subscribe().wait_for(Snapshot::is_finished).await;
    }

    /// Stops the job, and waits until it has ended, or does not although it was killed.
    pub(super) async fn stop(&self) {
        if !self.snapshot().is_finished() {
            self.cancel.cancel(Reason::Asked);
            if tokio::time::timeout(self.patience, self.finished()).await.is_err() {
                self.cancel.cancel(Reason::Asked);
            }
        }
        // Its state is final a moment before its thread lets go of its files.
        let mut is_over = self.is_over.subscribe();
        let _ = tokio::time::timeout(KILLED, is_over.wait_for(|is_over| *is_over)).await;
    }

    /// Removes the files, now or when the job has ended.
    pub(super) fn forget(&self) {
        let mut place = self.place();
        place.is_forgotten = true;
        let dir = place.clear();
        drop(place);
        drop(dir);
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a job; returns nothing if that panics, which is a fault of ours.
fn guarded(run: impl FnOnce() -> Outcome) -> Option<Outcome> {
    // What the panic says is on standard error.
    catch_unwind(AssertUnwindSafe(run)).ok()
}

/// Returns the end of a job whose thread panicked: it has failed, and nothing else has.
fn panicked() -> Outcome {
    Outcome {
        status: Status::Failure,
        message: "internal error: the thread of the job panicked".to_owned(),
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
