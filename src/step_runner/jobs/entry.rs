//! One job, from its start until it is removed.

use std::fs::{File, OpenOptions};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use prost::Message as _;
use tokio::sync::watch;

use super::super::engine::{Cancel, Job, JobOutcome, Reason};
use super::super::log::{Follower, Log, LogReader};
use super::super::redact::{Redactor, Shared};
use super::super::resolve::Resolver;
use super::super::wire::proto::StepResult;
use super::super::wire::proto::step_result::Status;
use super::event::{Event, Snapshot, Watcher};
use super::settings::TimeLimit;
use super::state::JobDir;

/// Maximum time to wait for a killed job to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

const PANICKED: &str = "internal error: the thread of the job panicked";

/// A job.
#[derive(Debug)]
pub struct Entry {
    state: watch::Sender<Snapshot>,
    log: LogReader,
    results: Results,
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
pub struct Work {
    pub job: Job,
    pub resolver: Resolver,
    pub log: Log,
    pub watcher: Watcher,
    /// The secrets with which the log was created.
    pub redactor: Redactor,
    /// Whether results have secrets in clear.
    pub show_secrets: bool,
    /// What the job's maximum run time is.
    pub limit: TimeLimit,
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

/// Length limit of a message: one gRPC response contains the messages of all jobs.
const MAX_BYTES: usize = 4 << 10;

/// Text before the exit code, for which GitLab's runner searches.
const EXIT_STATUS: &str = "exit status ";

/// Returns the message of a job that has ended.
///
/// If it was stopped, that is what the message says, and the exit code of the command that was stopped is
/// not at its end: GitLab's runner would take it for the job's.
fn stopped_message(outcome: &JobOutcome, reason: Option<Reason>, limit: TimeLimit) -> String {
    match (outcome.status, reason) {
        (Status::Cancelled, _) => format!("job cancelled ({})", outcome.error),
        (Status::Failure, Some(Reason::Timeout)) => {
            format!("job exceeded its maximum run time of {limit} ({})", outcome.error)
        }
        _ => outcome.message.clone(),
    }
}

/// Masks and shortens a message. The exit code at its end is kept.
pub fn masked_message(message: &str, secrets: &Redactor) -> String {
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
        either(more, entry.finished()).await;
    }
}

/// Waits until one of two is done.
pub async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        other.as_mut().poll(context)
    })
    .await;
}

/// The stored results of a job's steps.
#[derive(Debug)]
pub struct Results {
    file: File,
    ends: Mutex<Vec<u64>>,
    count: watch::Sender<usize>,
}

impl Results {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Results { file, ends: Mutex::default(), count: watch::Sender::new(0) })
    }

    /// Appends a result to the file.
    fn push(&self, result: &StepResult) -> io::Result<()> {
        let bytes = result.encode_to_vec();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let start = ends.last().copied().unwrap_or(0);
        self.file.write_all_at(&bytes, start)?;
        ends.push(start + bytes.len() as u64);
        self.count.send_replace(ends.len());
        Ok(())
    }

    /// Returns a result; `None` if that step has not ended.
    fn get(&self, index: usize) -> io::Result<Option<StepResult>> {
        let (start, end) = {
            let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(end) = ends.get(index).copied() else { return Ok(None) };
            (index.checked_sub(1).map_or(0, |before| ends[before]), end)
        };
        let length = usize::try_from(end - start).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(Some(StepResult::decode(&*bytes)?))
    }

    /// Returns a receiver of the number of results.
    fn watch(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::log::Masking;
    use super::*;

    #[test]
    fn a_panic_ends_the_job_alone() {
        assert!(guarded(|| panic!("for this test")).is_none());
        assert_eq!(guarded(panicked).unwrap().status, Status::Failure);
    }

    #[test]
    fn secrets_are_masked_and_the_exit_code_stays() {
        let secrets =
            Masking { phrases: vec!["3".to_owned(), "hidden".to_owned()], ..Masking::default() };
        let secrets = Redactor::new(secrets, BTreeMap::new());
        let cases = [
            ("step \"a\": exec: exit status 3", "step \"a\": exec: exit status 3"),
            ("exec: exec: \"hidden\": not found", "exec: exec: \"[MASKED]\": not found"),
            ("exit status hidden", "exit status [MASKED]"),
            ("", ""),
        ];
        for (message, expected) in cases {
            assert_eq!(masked_message(message, &secrets), expected);
        }
    }

    #[test]
    fn a_long_message_keeps_its_end() {
        let message = format!("step {}: exit status 12", "é".repeat(10_000));
        let told = masked_message(&message, &Redactor::new(Masking::default(), BTreeMap::new()));
        assert!(told.len() < MAX_BYTES + 100);
        assert!(told.ends_with("...: exit status 12"), "{told}");
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let results = Results::create(&dir.path().join("r")).unwrap();
        let all: Vec<_> = (0..5)
            .map(|i| StepResult {
                exports: [("x".to_owned(), "y".repeat(i * 1000))].into(),
                ..StepResult::default()
            })
            .collect();
        for result in &all {
            results.push(result).unwrap();
        }
        assert_eq!(*results.watch().borrow(), 5);
        for (index, result) in all.iter().enumerate() {
            assert_eq!(results.get(index).unwrap().as_ref(), Some(result));
        }
        assert_eq!(results.get(5).unwrap(), None);
    }
}
