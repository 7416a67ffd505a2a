//! Runs a job and listens.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oci_hooks::step_runner::document::StepFile;
use oci_hooks::step_runner::engine::{Cancel, Job, JobOutcome, StepError};
use oci_hooks::step_runner::log::{Output, Source, Stream};
use oci_hooks::step_runner::resolve::Resolver;
use oci_hooks::step_runner::wire::proto::StepResult;

/// A job.
pub(crate) struct Play {
    pub(crate) steps: StepFile,
    pub(crate) work_dir: PathBuf,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) vars: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
}

/// A job that was run.
pub(crate) struct Played {
    pub(crate) outcome: JobOutcome,
    /// All that was written, in the order in which it came.
    pub(crate) text: String,
    pub(crate) masked: Vec<String>,
    /// The results in the order in which steps ended.
    pub(crate) ended: Vec<StepResult>,
    /// Where its files were.
    pub(crate) scratch: PathBuf,
}

impl Play {
    pub(crate) fn new(work_dir: impl Into<PathBuf>, steps: &str) -> Self {
        Play {
            steps: StepFile::parse("steps", steps).unwrap(),
            work_dir: work_dir.into(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            vars: BTreeMap::new(),
            timeout: None,
        }
    }

    fn job(&self, scratch: PathBuf) -> Job {
        Job {
            steps: self.steps.clone(),
            work_dir: self.work_dir.clone(),
            dir: self.work_dir.clone(),
            env: self.env.clone(),
            vars: self.vars.clone(),
            inputs: BTreeMap::new(),
            scratch,
            grace: Duration::from_millis(300),
            cleanup: Duration::from_secs(5),
            timeout: self.timeout,
        }
    }

    pub(crate) fn check(&self) -> Result<(), StepError> {
        self.job(PathBuf::new()).check()
    }

    pub(crate) fn run(&self) -> Played {
        self.run_until(&Cancel::new().unwrap(), |_| {})
    }

    /// Runs the job; `heard` gets all that was written, whenever that is more.
    pub(crate) fn run_until(&self, cancel: &Cancel, heard: impl FnMut(&str) + Send) -> Played {
        let scratch = tempfile::tempdir().unwrap();
        let mut ears = Ears { text: Vec::new(), masked: Vec::new(), heard };
        let mut ended = Vec::new();
        let outcome = self.job(scratch.path().to_owned()).run(
            &Resolver::default(),
            &mut ears,
            cancel,
            &mut |result| ended.push(result.clone()),
        );
        let text = String::from_utf8_lossy(&ears.text).into_owned();
        Played { outcome, text, masked: ears.masked, ended, scratch: scratch.path().to_owned() }
    }
}

struct Ears<F> {
    text: Vec<u8>,
    masked: Vec<String>,
    heard: F,
}

impl<F: FnMut(&str) + Send> Output for Ears<F> {
    fn write(&mut self, _: Source, _: Stream, bytes: &[u8]) {
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
pub(crate) fn scripts(scripts: &[&str]) -> (tempfile::TempDir, Play) {
    let dir = tempfile::tempdir().unwrap();
    let play = Play::new(dir.path(), &steps_of(scripts));
    (dir, play)
}

/// Runs scripts as steps a number of times, several at once, and returns what they printed.
pub(crate) fn many(runs: usize, at_once: usize, texts: &[&str]) -> Vec<Played> {
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
