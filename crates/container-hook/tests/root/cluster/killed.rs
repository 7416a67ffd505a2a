//! Killed hooks and runners: the next call continues or removes their work.

use std::time::Duration;

use serde_json::json;

use crate::cluster::setup::{NamespaceHook, cluster, cycles};

#[test]
fn prepare_job_killed_at_any_moment_is_cleaned_up() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("prepare");
    let job = runner.job_container("alpine:3.20");
    let args = || json!({"container": job, "services": []});
    let took = runner.call("prepare_job", args()).success().took;
    runner.cleanup();
    let count = cycles(5);
    for cycle in 0..count {
        let at = took.mul_f64(f64::from(cycle) / f64::from(count));
        runner.start("prepare_job", args()).kill_after(at);
        runner.state = json!({});
        // Every second time the next job starts without a cleanup.
        if cycle % 2 == 1 {
            runner.prepare(job.clone(), &[]);
            runner.run("true").success();
        }
        runner.cleanup();
        pods.check_gone("prepare");
    }
}

#[test]
fn step_of_a_killed_hook_ends_before_the_next_begins() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("step");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut call =
        runner.start_run("echo begun; while true; do echo $$ >/tmp/alive; sleep 0.1; done");
    call.wait_for_line("begun");
    call.kill_after(Duration::from_millis(100));
    let script = "rm -f /tmp/alive; sleep 1; ls /tmp/alive 2>/dev/null || echo gone";
    assert_eq!(runner.run(script).success().stdout(), "gone\n");
    runner.cleanup();
    pods.check_gone("step");
}

#[test]
fn killed_container_steps_and_cleanups_are_cleaned_up_next_time() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("other");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let words = json!(["-c", "'echo begun; sleep 1000'"]);
    let step = json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words});
    let mut call = runner.start_container_step(step);
    call.wait_for_line("begun");
    call.kill_after(Duration::ZERO);
    runner.start("cleanup_job", json!({})).kill_after(Duration::from_millis(100));
    runner.cleanup();
    pods.check_gone("other");
}

#[test]
fn deleted_runner_pod_leaves_nothing() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("deleted");
    let job = oci_hooks_testsupport::github_runner::merge(
        runner.job_container("alpine:3.20"),
        json!({"environmentVariables": {"SECRET": "value"}}),
    );
    runner.prepare(job, &[]);
    assert!(!pods.pods_of("deleted").is_empty());
    pods.namespace.delete("pods", "deleted");
    pods.wait_until_gone("deleted");
}
