//! Pods that do not come, or that end under a step.

use std::time::Duration;

use serde_json::json;

use crate::setup::{Pods, cluster};
use crate::support::github_runner::merge;
use crate::support::program;

#[test]
fn a_quota_that_is_used_up_is_waited_for() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("quota");
    // The runner's own pod is the one that there may be.
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}});
    pods.namespace.create("resourcequotas", &quota);
    program::wait_until("the quota", || {
        let quota = pods.namespace.get("resourcequotas", "few").unwrap_or_default();
        quota["status"]["used"]["pods"] == "1"
    });
    let args = json!({"container": runner.job_container("alpine:3.20"), "services": []});
    let mut call = runner.start("prepare_job", args);
    call.wait_for_line("quota");
    pods.namespace.delete("resourcequotas", "few");
    let ended = call.wait().success();
    runner.keep_state(&ended);
    runner.cleanup();
    pods.check_gone("quota");
}

#[test]
fn a_step_whose_pod_is_deleted_fails_and_says_so() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("deleted");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut call = runner.start_run("echo begun; sleep 1000");
    call.wait_for_line("begun");
    let name = runner.state["jobPod"].as_str().unwrap().to_owned();
    pods.namespace.delete("pods", &name);
    let said = call.wait().failure();
    assert!(said.contains("delete") || said.contains("gone"), "{said}");
    assert!(said.contains(&name), "{said}");
    let said = runner.run("true").failure();
    assert!(said.contains(&name), "{said}");
    runner.cleanup();
}

#[test]
fn a_step_that_takes_more_memory_than_it_has_is_killed_and_the_job_goes_on() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("memory");
    let job = merge(runner.job_container("alpine:3.20"), json!({"createOptions": "--memory 64m"}));
    runner.prepare(job, &[]);
    // A line without end is kept whole.
    runner.run("tail -n 1 /dev/zero").code(137);
    runner.run("true").success();
    runner.cleanup();
}

#[test]
fn a_pod_that_the_kubelet_evicts_is_said_to_be() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    pods.write_template(
        "spec:\n  volumes:\n  - {name: small, emptyDir: {sizeLimit: 1Mi}}\n  containers:\n  \
         - name: $job\n    volumeMounts:\n    - {name: small, mountPath: /small}\n",
    );
    let mut runner = pods.runner("evicted");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let said = runner.run("head -c 20000000 /dev/zero >/small/full; sleep 170").failure();
    assert!(said.contains("Evicted") || said.contains("evicted"), "{said}");
    assert!(said.contains("small"), "the kubelet's own words: {said}");
    runner.cleanup();
}

#[test]
fn a_node_that_has_not_enough_is_waited_for_until_the_limit_and_named() {
    let cluster = cluster();
    let pods = Pods::with(&cluster, "[kubernetes]\nprepare-timeout = \"4s\"\n");
    let mut runner = pods.runner("scarce");
    let job = merge(runner.job_container("alpine:3.20"), json!({"createOptions": "--memory 900g"}));
    let args = json!({"container": job, "services": []});
    let ended = runner.call("prepare_job", args);
    assert!(ended.took >= Duration::from_secs(4), "{}", ended.log());
    let said = ended.failure();
    assert!(said.contains("nsufficient memory"), "{said}");
    pods.wait_until_gone("scarce");
}
