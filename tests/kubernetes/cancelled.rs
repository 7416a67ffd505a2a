//! Steps that the runner cancels.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{Pods, cluster};
use crate::support::program;

/// Returns whether a process with a word in its command line runs in a container: those of the cluster are
/// below this machine's own.
pub(crate) fn runs(word: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.map(|entry| entry.path().join("cmdline")).any(|path| {
        let line = fs::read(path).unwrap_or_default();
        let mut words = line.split(|&byte| byte == 0);
        words.next().is_some_and(|first| first.ends_with(b"sleep"))
            && words.next() == Some(word.as_bytes())
    })
}

#[test]
fn signals_reach_the_processes_of_a_step_and_it_ends_with_its_own_code() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("cancelled");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    // The shell waits for what it started, which the signal reaches too.
    let script = "trap 'echo interrupted; exit 9' INT; echo begun; sleep 71001 & wait; wait";
    let mut call = runner.start_run(script);
    call.wait_for_line("begun");
    program::wait_until("the step's process", || runs("71001"));
    let (ended, signals) = call.cancel();
    assert_eq!(signals, 1, "{}", ended.log());
    assert!(ended.log().contains("interrupted"), "{}", ended.log());
    ended.code(9);
    // What takes no notice of the first is ended by the second.
    let mut call = runner.start_run("trap '' INT; echo begun; sleep 71002; echo not reached");
    call.wait_for_line("begun");
    program::wait_until("the step's process", || runs("71002"));
    let (ended, signals) = call.cancel();
    assert_eq!(signals, 2, "{}", ended.log());
    assert!(!ended.status.success() && !ended.log().contains("not reached"));
    program::wait_until("the end of the step's process", || !runs("71002"));
    // The job goes on: `if: always()`.
    runner.run("true").success();
    runner.cleanup();
}

#[test]
fn a_container_step_that_is_cancelled_leaves_no_pod() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("action");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let words = json!(["-c", "'echo begun; exec sleep 71003'"]);
    let step = json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words});
    let mut call = runner.start_container_step(step);
    call.wait_for_line("begun");
    let (ended, _) = call.cancel();
    assert!(!ended.status.success(), "{}", ended.log());
    program::wait_until("the end of the step's process", || !runs("71003"));
    program::wait_until("the end of the step's pod", || pods.pods_of("action").len() == 1);
    runner.cleanup();
    pods.check_gone("action");
}

#[test]
fn a_prepare_job_that_is_cancelled_leaves_nothing() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let runner = pods.runner("prepare");
    // It would be waited for: no node has as much.
    let job = crate::support::github_runner::merge(
        runner.job_container("alpine:3.20"),
        json!({"createOptions": "--memory 900g"}),
    );
    let mut call = runner.start("prepare_job", json!({"container": job, "services": []}));
    program::wait_until("the job's pod", || !pods.pods_of("prepare").is_empty());
    std::thread::park_timeout(Duration::from_millis(200));
    call.signal(Signal::INT);
    let said = call.wait().failure();
    pods.wait_until_gone("prepare");
    drop(said);
}
