//! Steps that the runner cancels.

use std::fs;
use std::time::Duration;

use oci_hooks_testsupport::program;
use rustix::process::Signal;
use serde_json::json;

use crate::cluster::setup::{NamespaceHook, cluster};

/// Returns the process of a container that runs `sleep` with this argument. This machine's `/proc` shows the
/// cluster's processes.
pub(crate) fn sleep_process(word: &str) -> Option<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|&byte| byte == 0);
        words.next().is_some_and(|first| first.ends_with(b"sleep"))
            && words.next() == Some(word.as_bytes())
    })
}

/// Returns whether a container runs `sleep` with this argument.
pub(crate) fn runs_sleep(word: &str) -> bool {
    sleep_process(word).is_some()
}

#[test]
fn signals_reach_step_processes_and_the_step_exits_with_its_code() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("cancelled");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    // The signal reaches the shell's child too.
    let script = "trap 'echo interrupted; exit 9' INT; echo begun; sleep 71001 & wait; wait";
    let mut call = runner.start_run(script);
    call.wait_for_line("begun");
    program::wait_until("the step's process", || runs_sleep("71001"));
    let ended = call.interrupt();
    assert!(ended.log().contains("interrupted"), "{}", ended.log());
    ended.code(9);
    // A process that ignores the first signal is ended by the second.
    let mut call = runner.start_run("trap '' INT; echo begun; sleep 71002; echo not reached");
    call.wait_for_line("begun");
    program::wait_until("the step's process", || runs_sleep("71002"));
    let (ended, signals) = call.cancel();
    assert_eq!(signals, 2, "{}", ended.log());
    assert!(!ended.status.success() && !ended.log().contains("not reached"));
    program::wait_until("the end of the step's process", || !runs_sleep("71002"));
    // The job continues, as with `if: always()`.
    runner.run("true").success();
    runner.cleanup();
}

#[test]
fn cancelled_container_step_leaves_no_pod() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("action");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let words = json!(["-c", "'echo begun; exec sleep 71003'"]);
    let step = json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words});
    let mut call = runner.start_container_step(step);
    call.wait_for_line("begun");
    let (ended, _) = call.cancel();
    assert!(!ended.status.success(), "{}", ended.log());
    program::wait_until("the end of the step's process", || !runs_sleep("71003"));
    program::wait_until("the end of the step's pod", || pods.pods_of("action").len() == 1);
    runner.cleanup();
    pods.check_gone("action");
}

#[test]
fn cancelled_prepare_job_leaves_nothing() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let runner = pods.runner("prepare");
    // `prepare_job` waits for the pod, because no node has that much memory.
    let job = oci_hooks_testsupport::github_runner::merge(
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
