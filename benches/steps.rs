//! `step-runner`: from the request to the first byte of the log, and a hundred steps beside a shell
//! that runs the same hundred commands.
//!
//! `cargo bench --features step-runner --bench steps`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oci_hooks::step_runner::document::StepFile;
use oci_hooks::step_runner::engine::{Cancel, Job};
use oci_hooks::step_runner::log::{Output, Source, Stream};
use oci_hooks::step_runner::resolve::Resolver;
use oci_hooks::step_runner::wire::proto::step_result::Status;

const STEPS: usize = 100;

const RUNS: usize = 41;

fn main() {
    hundred_steps();
}

/// A hundred times `true`, each in a process of its own; both run by turns.
fn hundred_steps() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = "{}\n---\nrun:\n".to_owned();
    for number in 0..STEPS {
        writeln!(text, "- {{name: s{number}, step: ./true}}").unwrap();
    }
    std::fs::create_dir(dir.path().join("true")).unwrap();
    let step = "{}\n---\nexec: {command: [/bin/true]}\n";
    std::fs::write(dir.path().join("true/step.yml"), step).unwrap();
    let steps = StepFile::parse("steps", &text).unwrap();

    let (mut ours, mut shells) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        ours.push(time(|| play(&steps, dir.path(), run)));
        shells.push(time(shell));
    }
    let (ours, shell) = (median(ours), median(shells));
    let ratio = ours.as_secs_f64() / shell.as_secs_f64();
    println!(
        "{STEPS} steps of /bin/true: {ours:.1?}; sh -c 'while …; do /bin/true; done': {shell:.1?}; {ratio:.2}×"
    );
}

fn play(steps: &StepFile, dir: &Path, run: usize) {
    let scratch = dir.join(format!("scratch-{run}"));
    std::fs::create_dir(&scratch).unwrap();
    let job = Job {
        steps: steps.clone(),
        work_dir: dir.to_owned(),
        env: std::env::vars().collect(),
        vars: BTreeMap::new(),
        inputs: BTreeMap::new(),
        scratch,
        grace: Duration::from_secs(5),
        cleanup: Duration::from_secs(5),
        timeout: None,
    };
    let cancel = Cancel::new().unwrap();
    let outcome = job.run(&Resolver::default(), &mut Deaf, &cancel, &mut |_| {});
    assert_eq!(outcome.status, Status::Success, "{}", outcome.message);
}

fn shell() {
    let loop_ = format!("i=0; while [ $i -lt {STEPS} ]; do /bin/true; i=$((i+1)); done");
    assert!(Command::new("sh").args(["-c", &loop_]).status().unwrap().success());
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Deaf;

impl Output for Deaf {
    fn write(&mut self, _: Source, _: Stream, _: &[u8]) {}

    fn flush(&mut self) {}

    fn mask(&mut self, _: &str) {}
}
