//! Runs a job and records its output.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oci_hooks_testsupport::program::DEADLINE;
use step_runner::document::StepFile;
use step_runner::engine::{CancelHandle, JobOutcome, StepError, StepJob};
use step_runner::log::{LogStream, OutputSink, OutputSource};
use step_runner::resolve::Resolver;
use step_runner::wire::proto::StepResult;

/// Time for a command to end after `SIGTERM`, even on a busy machine.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

/// Grace period of commands that are to be killed.
pub(crate) const SHORT_GRACE: Duration = Duration::from_millis(300);

/// A job.
pub(crate) struct JobPlay {
    pub(crate) steps: StepFile,
    pub(crate) work_dir: PathBuf,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) vars: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
}

/// A finished job.
pub(crate) struct FinishedJob {
    pub(crate) outcome: JobOutcome,
    /// The whole output, in order.
    pub(crate) text: String,
    pub(crate) masked: Vec<String>,
    /// Results in the order of the steps' ends.
    pub(crate) ended: Vec<StepResult>,
    /// Directory that the job's files were in.
    pub(crate) scratch: PathBuf,
}

impl JobPlay {
    pub(crate) fn new(work_dir: impl Into<PathBuf>, steps: &str) -> Self {
        JobPlay {
            steps: StepFile::parse("steps", steps).unwrap(),
            work_dir: work_dir.into(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            vars: BTreeMap::new(),
            timeout: None,
            grace: GRACE,
        }
    }

    fn job(&self, scratch: PathBuf) -> StepJob {
        StepJob {
            steps: self.steps.clone(),
            work_dir: self.work_dir.clone(),
            dir: self.work_dir.clone(),
            env: self.env.clone(),
            vars: self.vars.clone(),
            scratch,
            grace: self.grace,
            cleanup: DEADLINE,
            timeout: self.timeout,
        }
    }

    pub(crate) fn check(&self) -> Result<(), StepError> {
        self.job(PathBuf::new()).check()
    }

    pub(crate) fn run(&self) -> FinishedJob {
        self.run_until(&CancelHandle::new().unwrap(), |_| {})
    }

    /// Runs the job. `heard` gets the whole output so far, after each addition.
    pub(crate) fn run_until(
        &self,
        cancel: &CancelHandle,
        heard: impl FnMut(&str) + Send,
    ) -> FinishedJob {
        let scratch = tempfile::tempdir().unwrap();
        let mut ears = OutputListener { text: Vec::new(), masked: Vec::new(), heard };
        let mut ended = Vec::new();
        let outcome = self.job(scratch.path().to_owned()).run(
            &Resolver::default(),
            &mut ears,
            cancel,
            &mut |result| ended.push(result.clone()),
        );
        let text = String::from_utf8_lossy(&ears.text).into_owned();
        FinishedJob {
            outcome,
            text,
            masked: ears.masked,
            ended,
            scratch: scratch.path().to_owned(),
        }
    }
}

struct OutputListener<F> {
    text: Vec<u8>,
    masked: Vec<String>,
    heard: F,
}

impl<F: FnMut(&str) + Send> OutputSink for OutputListener<F> {
    fn write(&mut self, _: OutputSource, _: LogStream, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        (self.heard)(&String::from_utf8_lossy(&self.text));
    }

    fn flush(&mut self) {}

    fn mask(&mut self, secret: &str) {
        self.masked.push(secret.to_owned());
    }
}

fn steps_of(scripts: &[&str]) -> String {
    let mut text = "{}\n---\nrun:\n".to_owned();
    for (number, script) in scripts.iter().enumerate() {
        text += &format!("- {{name: s{number}, script: {}}}\n", serde_json::json!(script));
    }
    text
}

/// Returns a job with these scripts as steps `s0`, `s1` and so on.
pub(crate) fn scripts(scripts: &[&str]) -> (tempfile::TempDir, JobPlay) {
    let dir = tempfile::tempdir().unwrap();
    let play = JobPlay::new(dir.path(), &steps_of(scripts));
    (dir, play)
}

/// Runs scripts as steps `runs` times, `at_once` at a time, and returns the finished jobs.
pub(crate) fn run_many(runs: usize, at_once: usize, texts: &[&str]) -> Vec<FinishedJob> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut played = Vec::new();
        while next.fetch_add(1, Ordering::Relaxed) < runs {
            let (_dir, play) = scripts(texts);
            played.push(play.run());
        }
        played
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}
