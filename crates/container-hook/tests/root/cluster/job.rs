//! A whole job.

use oci_hooks_testsupport::github_runner::{container, merge};
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::cluster::cancelled::runs_sleep;
use crate::cluster::setup::{NamespaceHook, cluster};

#[test]
fn job_with_a_service_runs_and_leaves_nothing() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("whole");
    std::fs::write(runner.workspace().join("from-runner"), "checked out\n").unwrap();
    let service =
        merge(container("redis:7"), json!({"contextName": "cache", "portMappings": ["6379"]}));
    let response = runner.prepare(runner.job_container("node:22"), &[service]);
    assert_eq!(response["isAlpine"], false);
    assert_eq!(response["context"]["container"]["image"], "node:22");
    assert_eq!(response["context"]["services"][0]["ports"], json!({"6379": "6379"}));
    // ARC's controller and the reference hook identify the pod by this label.
    let made = pods.pods_of("whole");
    assert_eq!(made.len(), 1, "{made:#?}");
    assert_eq!(made[0]["metadata"]["name"], runner.state["jobPod"]);
    let (ended, outputs) = runner.run_step(
        "cat from-runner; pwd; echo to stderr >&2; echo \"$GREETING\"\n\
         echo answer=42 >>$GITHUB_OUTPUT; echo KEPT=value >>$GITHUB_ENV\n\
         echo /opt/new >>$GITHUB_PATH; echo made >made",
        &[("GREETING", "hello")],
    );
    let ended = ended.success();
    assert_eq!(ended.stdout(), "checked out\n/__w/repo/repo\nhello\n");
    assert_eq!(ended.stderr(), "to stderr\n");
    assert_eq!(outputs["answer"], "42");
    // Files of the step appear in the runner's workspace.
    assert_eq!(std::fs::read_to_string(runner.workspace().join("made")).unwrap(), "made\n");
    let ended = runner.run("echo \"$KEPT $PATH\"; cat made").success();
    assert!(ended.stdout().starts_with("value /opt/new:/usr/local/sbin:"), "{}", ended.log());
    assert!(ended.stdout().ends_with("\nmade\n"), "{}", ended.log());
    let ended = runner.javascript("", &[]).success();
    assert!(ended.stdout().starts_with("node: "), "{}", ended.log());
    runner.cleanup();
    pods.check_gone("whole");
}

#[test]
fn jobs_run_on_alpine_as_other_users_and_without_a_shell() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut runner = pods.runner("alpine");
            let response = runner.prepare(runner.job_container("alpine:3.20"), &[]);
            assert_eq!(response["isAlpine"], true);
            let ended = runner.javascript("", &[]).success();
            assert!(ended.stdout().starts_with("alpine: "), "{}", ended.log());
            runner.cleanup();
        });
        scope.spawn(|| {
            let mut runner = pods.runner("user");
            runner.prepare(runner.job_container("test/user:1"), &[]);
            let (ended, outputs) =
                runner.run_step("id -u; echo by=user >>$GITHUB_OUTPUT; touch written", &[]);
            assert_eq!(ended.success().stdout(), "1001\n");
            assert_eq!(outputs["by"], "user");
            assert!(runner.workspace().join("written").exists());
            runner.cleanup();
        });
        scope.spawn(|| {
            let mut runner = pods.runner("scratch");
            let response = runner.prepare(runner.job_container("test/scratch:1"), &[]);
            assert_eq!(response["isAlpine"], false);
            let words = ["no".to_owned(), "shell".to_owned()];
            let args = runner.script_args("/echo", &words, &[], "none");
            let ended = runner.call("run_script_step", args).success();
            assert_eq!(ended.stdout(), "no shell\n");
            runner.cleanup();
        });
    });
    for runner in ["alpine", "user", "scratch"] {
        pods.check_gone(runner);
    }
}

#[test]
fn job_replaces_a_predecessor_that_was_not_cleaned_up() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("again");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    runner.run("echo first >/tmp/first").success();
    runner.state = json!({});
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    assert_eq!(runner.run("ls /tmp").success().stdout(), "");
    runner.cleanup();
    pods.check_gone("again");
    // Cleanup without a job is no error.
    runner.cleanup();
}

#[test]
fn background_processes_do_not_delay_the_next_job() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("running");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    runner.run("sleep 71004 >/dev/null 2>&1 & touch /tmp/first").success();
    program::wait_until("what the job leaves running", || runs_sleep("71004"));
    runner.cleanup();
    // The old pod may still be terminating: cleanup does not wait for the kubelet.
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    assert_eq!(runner.run("ls /tmp").success().stdout(), "");
    program::wait_until("the end of what the job left running", || !runs_sleep("71004"));
    runner.cleanup();
    pods.check_gone("running");
    pods.wait_until_gone("running");
}
