//! Pods that do not start, or that end during a step.

use std::time::Duration;

use oci_hooks_testsupport::github_runner::merge;
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::cluster::setup::{NamespaceHook, cluster};

#[test]
fn exhausted_quota_is_waited_for() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("quota");
    // The runner's own pod uses up the quota.
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
fn a_runner_image_without_the_program_is_reported_with_a_hint() {
    let cluster = cluster();
    let settings = "[kubernetes]\nrunner-image = \"alpine:3.20\"\n";
    let pods = NamespaceHook::with(&cluster, settings);
    let mut runner = pods.runner("elsewhere");
    let args = json!({"container": runner.job_container("alpine:3.20"), "services": []});
    let said = runner.call("prepare_job", args).failure();
    let hint = "the image alpine:3.20 needs the program container-hook in its PATH";
    assert!(said.contains(hint), "{said}");
    pods.wait_until_gone("elsewhere");
}

#[test]
fn another_runner_image_has_the_program_in_its_path() {
    let cluster = cluster();
    // The path of this hook is known only for the image of the runner's pod; other images have it in `PATH`.
    let settings = "[kubernetes]\nrunner-image = \"docker.io/actions/actions-runner:latest\"\n";
    let pods = NamespaceHook::with(&cluster, settings);
    let mut runner = pods.runner("named");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let pod = &pods.pods_of("named")[0];
    let init = &pod["spec"]["initContainers"][0];
    assert_eq!(init["command"][0], "container-hook", "{init}");
    runner.run("true").success();
    runner.cleanup();
}

#[test]
fn a_role_without_exec_is_reported_with_the_missing_line() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_rules(
        r#"[{"apiGroups": [""], "resources": ["pods", "secrets"],
            "verbs": ["get", "list", "create", "delete"]}]"#,
    );
    let mut runner = pods.runner("role");
    let args = json!({"container": runner.job_container("alpine:3.20"), "services": []});
    let said = runner.call("prepare_job", args).failure();
    let line = "{apiGroups: [\"\"], resources: [pods/exec], verbs: [create, get]}";
    assert!(said.contains(line) && said.contains("cannot get resource \"pods/exec\""), "{said}");
    pods.wait_until_gone("role");
}

#[test]
fn step_fails_with_a_message_if_its_pod_is_deleted() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
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
fn step_killed_for_memory_does_not_end_the_job() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("memory");
    let job = merge(runner.job_container("alpine:3.20"), json!({"createOptions": "--memory 64m"}));
    runner.prepare(job, &[]);
    // `tail` keeps an endless line in memory.
    let ended = runner.run("tail -n 1 /dev/zero").code(137);
    let said = "the job container ran out of memory: ";
    assert!(ended.log().contains(said), "{}", ended.log());
    let ended = runner.run("true").success();
    assert!(!ended.log().contains(said), "it is of another step: {}", ended.log());
    runner.cleanup();
}

#[test]
fn step_that_fills_the_disk_of_its_directory_is_explained() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("disk");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let words = ["-c".to_owned(), "'head -c 200000000 /dev/zero >full'".to_owned()];
    let mut args = runner.script_args("sh", &words, &[], "none");
    // A small file system in memory.
    args["workingDirectory"] = json!("/dev/shm");
    let said = runner.call("run_script_step", args).failure();
    assert!(said.contains("the job container filled its disk"), "{said}");
    runner.cleanup();
}

#[test]
fn step_slowed_down_by_its_cpu_limit_is_told_so() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("slow");
    let job = merge(runner.job_container("alpine:3.20"), json!({"createOptions": "--cpus 0.05"}));
    runner.prepare(job, &[]);
    // The loop creates no processes: it waits for nothing but the limit.
    let ended = runner.run("timeout 12 sh -c 'while :; do :; done' || true").success();
    let said = "the job container was slowed down by its CPU limit in ";
    assert!(ended.log().contains(said), "{}", ended.log());
    let ended = runner.run("true").success();
    assert!(!ended.log().contains(said), "{}", ended.log());
    runner.cleanup();
}

#[test]
fn evicted_pod_is_reported() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    pods.write_template(
        "spec:\n  volumes:\n  - {name: small, emptyDir: {sizeLimit: 1Mi}}\n  containers:\n  \
         - name: $job\n    volumeMounts:\n    - {name: small, mountPath: /small}\n",
    );
    let mut runner = pods.runner("evicted");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let said = runner.run("head -c 20000000 /dev/zero >/small/full; sleep 170").failure();
    assert!(said.contains("Evicted"), "{said}");
    assert!(said.contains("small"), "the kubelet's own words: {said}");
    assert_eq!(pods.pods_of("evicted")[0]["status"]["phase"], "Failed");
    runner.cleanup();
}

#[test]
fn insufficient_node_resources_are_waited_for_and_named() {
    let cluster = cluster();
    let settings = "[kubernetes]\nprepare-timeout = \"15s\"\nmemory-request = \"900GiB\"\n";
    let pods = NamespaceHook::with(&cluster, settings);
    let mut runner = pods.runner("scarce");
    let job = merge(runner.job_container("alpine:3.20"), json!({"createOptions": "--memory 900g"}));
    let args = json!({"container": job, "services": []});
    let ended = runner.call("prepare_job", args);
    assert!(ended.took >= Duration::from_secs(15), "{}", ended.log());
    let said = ended.failure();
    assert!(said.contains("nsufficient memory"), "{said}");
    pods.wait_until_gone("scarce");
}
