//! The state of one job, from its start until its removal.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::select;
use tokio::sync::watch;

use super::super::engine::{CancelHandle, CancelReason, JobOutcome, StepJob};
use super::super::log::{LogFollower, LogReader, StepLog};
use super::super::redact::{RedactedOutput, Redactor};
use super::super::resolve::Resolver;
use super::super::wire::proto::StepResult;
use super::super::wire::proto::step_result::Status;
use super::event::{EventWatcher, JobEvent, JobSnapshot};
use super::kept::{EarlierJob, write_record};
use super::results::ResultStore;
use super::settings::TimeLimit;
use super::state::JobDir;

/// Maximum time to wait for a killed job to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

const PANICKED: &str = "internal error: the thread of the job panicked";

/// A job in the registry: its status, log, results and files.
#[derive(Debug)]
pub struct JobEntry {
    state: watch::Sender<JobSnapshot>,
    log: LogReader,
    results: ResultStore,
    /// `None` for a job of an earlier server, which has ended.
    cancel: Option<CancelHandle>,
    /// Time for a cancelled job to end before it is killed.
    cancel_timeout: Duration,
    /// Set once the thread of the job has released all resources.
    is_released: watch::Sender<bool>,
    files: Mutex<JobStorage>,
}

#[derive(Debug)]
struct JobStorage {
    /// The directory with the job's files, until the job has ended and is removed.
    dir: Option<JobDir>,
    ended: Option<Instant>,
    is_removed: bool,
}

impl JobStorage {
    /// Takes the directory to delete, if the job has ended and was removed from the registry.
    /// Readers keep the log open.
    fn clear(&mut self) -> Option<JobDir> {
        if self.is_removed && self.ended.is_some() { self.dir.take() } else { None }
    }
}

/// Resources of the thread that runs a job.
pub struct JobResources {
    pub job: StepJob,
    pub resolver: Resolver,
    pub log: StepLog,
    pub watcher: EventWatcher,
    pub cancel: CancelHandle,
    /// Masks the secrets with which the log was created.
    pub redactor: Redactor,
    /// If set, results contain secrets in plain text.
    pub show_secrets: bool,
    /// Maximum run time of the job.
    pub limit: TimeLimit,
}

impl JobEntry {
    pub(super) fn new(
        id: &str,
        mut dir: JobDir,
        work: &JobResources,
        results: ResultStore,
    ) -> Self {
        let snapshot = JobSnapshot {
            id: id.to_owned(),
            status: Status::Unspecified,
            message: String::new(),
            exit_code: 0,
            start: None,
            end: None,
        };
        // Results with secrets in plain text do not outlive the server.
        if !work.show_secrets {
            dir.keep(&JobSnapshot {
                status: Status::Running,
                start: Some(SystemTime::now()),
                ..snapshot.clone()
            });
        }
        JobEntry {
            state: watch::Sender::new(snapshot),
            log: work.log.reader(),
            results,
            cancel: Some(work.cancel.clone()),
            cancel_timeout: work.job.grace + work.job.cleanup,
            is_released: watch::Sender::new(false),
            files: Mutex::new(JobStorage { dir: Some(dir), ended: None, is_removed: false }),
        }
    }

    /// Returns a job of an earlier server.
    pub(super) fn of_earlier(job: EarlierJob) -> Self {
        let EarlierJob { dir, state, log, results } = job;
        let now = Instant::now();
        // The clock may have been changed.
        let age = state.end.and_then(|end| end.elapsed().ok()).unwrap_or_default();
        let ended = Some(now.checked_sub(age).unwrap_or(now));
        JobEntry {
            state: watch::Sender::new(state),
            log,
            results,
            cancel: None,
            cancel_timeout: Duration::ZERO,
            is_released: watch::Sender::new(true),
            files: Mutex::new(JobStorage { dir: Some(dir), ended, is_removed: false }),
        }
    }

    /// Runs the job to its end.
    pub(super) fn work(self: Arc<Self>, work: JobResources) {
        let JobResources { job, resolver, mut log, watcher, cancel, redactor, show_secrets, limit } =
            work;
        self.state.send_modify(|state| {
            state.status = Status::Running;
            state.start = Some(SystemTime::now());
        });
        let mut lost = None;
        let mut ended = |result: &mut StepResult| {
            if !show_secrets {
                redactor.redact(result);
            }
            if let Err(error) = self.results.push(result) {
                lost.get_or_insert(error);
            }
        };
        let mut output = RedactedOutput { output: &mut log, redactor: &redactor };
        let outcome = run_guarded(|| job.run(&resolver, &mut output, &cancel, &mut ended));
        let outcome = outcome.unwrap_or_else(|| {
            let mut outcome = panic_outcome();
            ended(&mut outcome.result);
            outcome
        });
        let message = stopped_message(&outcome, cancel.reason(), limit);
        let message = mask_message(&message, &redactor);
        let ended = JobSnapshot {
            status: outcome.status,
            exit_code: outcome.exit_code,
            message: match lost {
                Some(error) => format!("cannot store the results of steps ({error}): {message}"),
                None => message,
            },
            end: Some(SystemTime::now()),
            ..self.snapshot()
        };
        self.record(&ended);
        // Set before the log ends: a client that has read the whole log finds the job ended.
        self.end_with(ended);
        // The log itself reports write errors.
        drop(log);
        watcher(&JobEvent::Ended(&self.snapshot()));
        let mut files = self.files();
        files.ended = Some(Instant::now());
        let dir = files.clear();
        drop(files);
        drop(dir);
        self.is_released.send_replace(true);
    }

    /// Writes the final state to the job's record, which the next server reads. A job whose record
    /// was removed, or was never written, gets none.
    fn record(&self, ended: &JobSnapshot) {
        let record = {
            let files = self.files();
            files.dir.as_ref().filter(|dir| dir.is_recorded()).map(JobDir::record)
        };
        if let Some(record) = record {
            write_record(&record, ended);
        }
    }

    /// Sets the final status, unless the job already has one because it was abandoned.
    fn end_with(&self, ended: JobSnapshot) {
        self.state.send_if_modified(|state| {
            let is_running = state.end.is_none();
            if is_running {
                *state = ended;
            }
            is_running
        });
    }

    pub(super) fn snapshot(&self) -> JobSnapshot {
        self.state.borrow().clone()
    }

    /// Returns the time at which the job ended; `None` while it runs.
    pub(super) fn end_time(&self) -> Option<Instant> {
        self.files().ended
    }

    /// Follows the log from an offset in bytes.
    pub(super) fn follow(&self, offset: u64) -> LogFollower {
        self.log.follow(offset)
    }

    pub(super) async fn wait_until_finished(&self) {
        // Cannot fail: the entry owns the sender.
        let _ = self.state.subscribe().wait_for(JobSnapshot::is_finished).await;
    }

    /// Cancels the job if it runs and is not cancelled yet. Returns whether this call cancelled it.
    pub(super) fn cancel(&self) -> bool {
        let running = self.cancel.as_ref().filter(|cancel| cancel.reason().is_none());
        let Some(cancel) = running.filter(|_| !self.snapshot().is_finished()) else {
            return false;
        };
        cancel.stop(CancelReason::Requested);
        true
    }

    /// Cancels the job, and waits until it has ended; abandons it if it does not end when killed.
    pub(super) async fn stop(&self) {
        if let Some(cancel) = &self.cancel
            && !self.snapshot().is_finished()
        {
            cancel.stop(CancelReason::Requested);
            if tokio::time::timeout(self.cancel_timeout, self.wait_until_finished()).await.is_err()
            {
                cancel.cancel(CancelReason::Requested);
            }
        }
        // The status is final a moment before the thread of the job releases its files.
        let mut is_released = self.is_released.subscribe();
        let is_released = is_released.wait_for(|is_released| *is_released);
        if tokio::time::timeout(KILL_TIMEOUT, is_released).await.is_err() {
            self.abandon_job();
        }
    }

    /// Sets the final status of a job whose thread hangs in the kernel, unless it has one. If the
    /// job is closed, its files are removed when the thread returns.
    fn abandon_job(&self) {
        self.end_with(JobSnapshot {
            status: Status::Cancelled,
            exit_code: 1,
            message: "the job was cancelled, but a thread of it hangs in the kernel, for example on an unresponsive mount".to_owned(),
            end: Some(SystemTime::now()),
            ..self.snapshot()
        });
    }

    /// Removes the files, now or when the job has ended.
    pub(super) fn remove(&self) {
        let mut files = self.files();
        files.is_removed = true;
        if let Some(dir) = &mut files.dir {
            dir.discard();
        }
        let dir = files.clear();
        drop(files);
        drop(dir);
    }

    fn files(&self) -> std::sync::MutexGuard<'_, JobStorage> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a job; returns `None` on a panic, which is a bug.
fn run_guarded(run: impl FnOnce() -> JobOutcome) -> Option<JobOutcome> {
    // The panic message is on standard error.
    catch_unwind(AssertUnwindSafe(run)).ok()
}

/// Returns the outcome of a job that panicked: it fails, but the server continues.
fn panic_outcome() -> JobOutcome {
    JobOutcome {
        status: Status::Failure,
        message: PANICKED.to_owned(),
        error: PANICKED.to_owned(),
        exit_code: 1,
        result: StepResult { status: Status::Failure.into(), ..StepResult::default() },
    }
}

/// Maximum length of a job's message in bytes, without the exit code at its end: one gRPC response
/// contains the messages of all jobs.
const MAX_BYTES: usize = 4 << 10;

/// Text before the exit code, for which GitLab's runner searches.
const EXIT_STATUS: &str = "exit status ";

/// Returns the message of a job that has ended.
///
/// The message of a stopped job names the reason, and does not end with the exit code of the stopped
/// command: GitLab's runner would take it for the exit code of the job.
fn stopped_message(outcome: &JobOutcome, reason: Option<CancelReason>, limit: TimeLimit) -> String {
    match (outcome.status, reason) {
        (Status::Cancelled, _) => format!("job cancelled ({})", outcome.error),
        (Status::Failure, Some(CancelReason::Timeout)) => {
            format!("job exceeded its maximum run time of {limit} ({})", outcome.error)
        }
        _ => outcome.message.clone(),
    }
}

/// Masks and shortens a message. The exit code at its end is kept.
pub fn mask_message(message: &str, secrets: &Redactor) -> String {
    let is_code =
        |at: &usize| message[at + EXIT_STATUS.len()..].bytes().all(|byte| byte.is_ascii_digit());
    let end = message.rfind(EXIT_STATUS).filter(is_code).unwrap_or(message.len());
    let (text, code) = message.split_at(end);
    let mut text = secrets.text(text);
    if text.len() > MAX_BYTES {
        let at = (0..=MAX_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text += "...: ";
    }
    text + code
}

/// A reader of the results of a job's steps, in the order in which they end; the result of the job is the last.
#[derive(Debug)]
pub struct StepFollower {
    entry: Arc<JobEntry>,
    next: usize,
    count: watch::Receiver<usize>,
}

impl StepFollower {
    pub(super) fn new(entry: Arc<JobEntry>, skip: usize) -> Self {
        let count = entry.results.watch();
        StepFollower { entry, next: skip, count }
    }

    /// Waits for the next result; returns `None` when the job has ended.
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
        let StepFollower { entry, next, count } = self;
        let more = async {
            // Cannot fail: the entry owns the sender.
            let _ = count.wait_for(|count| count > next).await;
        };
        wait_for_either(more, entry.wait_until_finished()).await;
    }
}

/// Waits until either future completes.
pub async fn wait_for_either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    select(pin!(one), pin!(other)).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::log::Masking;
    use super::*;

    #[test]
    fn panic_ends_only_its_job() {
        assert!(run_guarded(|| panic!("for this test")).is_none());
        assert_eq!(run_guarded(panic_outcome).unwrap().status, Status::Failure);
    }

    #[test]
    fn secrets_in_messages_are_masked_and_the_exit_code_kept() {
        let secrets =
            Masking { phrases: vec!["3".to_owned(), "hidden".to_owned()], ..Masking::default() };
        let secrets = Redactor::new(&secrets, BTreeMap::new());
        let cases = [
            ("step \"a\": exec: exit status 3", "step \"a\": exec: exit status 3"),
            ("exec: exec: \"hidden\": not found", "exec: exec: \"[MASKED]\": not found"),
            ("exit status hidden", "exit status [MASKED]"),
            ("", ""),
        ];
        for (message, expected) in cases {
            assert_eq!(mask_message(message, &secrets), expected);
        }
    }

    #[test]
    fn a_long_message_keeps_its_end() {
        let message = format!("step {}: exit status 12", "é".repeat(10_000));
        let told = mask_message(&message, &Redactor::new(&Masking::default(), BTreeMap::new()));
        assert!(told.len() < MAX_BYTES + 100);
        assert!(told.ends_with("...: exit status 12"), "{told}");
    }
}
