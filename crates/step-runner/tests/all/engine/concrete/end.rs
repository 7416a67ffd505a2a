//! Cancellation and time limits in each stage.

use std::time::Duration;

use serde_json::{Value, json};
use step_runner::engine::{CancelHandle, CancelReason};
use step_runner::wire::proto::step_result::Status;

use super::job::{JobSite, assert_order, job};
use crate::engine::play::{GRACE, SHORT_GRACE};

/// Runs until stopped.
const FOREVER: &str = "echo waiting; while :; do sleep 0.05; done";

/// Returns a job with all stages. Each stage prints its name.
fn job_with_all_stages() -> Value {
    let mut config = job(&[
        ("script", &["echo in script"]),
        ("after_script", &["echo in after $CI_JOB_STATUS"]),
    ]);
    config["cache_archive"] =
        json!([{"key": "k", "paths": ["x"], "on_success": true, "on_failure": true}]);
    config["artifacts_archive"] = json!([{"paths": ["x"], "on_success": true, "on_failure": true}]);
    config
}

const CANCELED: &str = "step \"concrete\": exec: job canceled: context canceled";

#[test]
fn cancelled_script_ends_and_later_stages_run() {
    let site = JobSite::new().with_gitlab();
    let mut config = job_with_all_stages();
    config["steps"][0]["script"] = json!([FOREVER, "echo never"]);
    let cancel = CancelHandle::new().unwrap();
    let played = site.cancel_at(&config, "\nwaiting\n", &cancel);
    assert_eq!((played.outcome.status, &*played.outcome.message), (Status::Cancelled, CANCELED));
    assert_order(
        &played.text,
        &[
            "waiting\n",
            "Script canceled externally",
            "in after canceled\n",
            "cache-archiver runs\n",
            "artifacts-uploader runs\n",
        ],
    );
    assert!(!played.text.contains("\nnever"), "{}", played.text);
    // The shell does not print the interrupted command.
    assert_eq!(played.text.matches("while :").count(), 1, "{}", played.text);
}

#[test]
fn cancelled_script_is_killed_or_cancelled_despite_exit_0() {
    for (line, grace) in [("trap '' TERM", SHORT_GRACE), ("trap 'exit 0' TERM", GRACE)] {
        let mut site = JobSite::new().with_gitlab();
        site.grace = grace;
        let mut config = job_with_all_stages();
        config["steps"][0]["script"] = json!([line, FOREVER]);
        let played = site.cancel_at(&config, "\nwaiting\n", &CancelHandle::new().unwrap());
        assert_eq!(
            (played.outcome.status, &*played.outcome.message),
            (Status::Cancelled, CANCELED)
        );
        assert_order(&played.text, &["in after canceled\n", "artifacts-uploader runs\n"]);
    }
}

#[test]
fn job_cancelled_before_its_script_runs_no_after_script() {
    let site = JobSite::new().with_gitlab();
    let mut config = job_with_all_stages();
    config["get_sources"] = json!({"git_strategy": "fetch", "repo_url": "file:///nothing", "max_attempts": 5,
        "pre_clone_step": {"step": "pre_clone_script", "script": [FOREVER], "on_success": true}});
    let played = site.cancel_at(&config, "\nwaiting\n", &CancelHandle::new().unwrap());
    assert_eq!(played.outcome.status, Status::Cancelled);
    for never in ["in script\n", "in after", "cache-archiver", "Retrying"] {
        assert!(!played.text.contains(never), "{}", played.text);
    }
    // A cancellation during the restore of a cache, which alone would not fail the job.
    let gitlab = "#!/bin/sh\necho waiting; while :; do sleep 0.05; done\n";
    super::job::write_program(&site.path("bin/gitlab-runner"), gitlab);
    let mut config = job_with_all_stages();
    config["cache_extract"] = json!([{"sources": [{"name": "a", "key": "a"}], "max_attempts": 5}]);
    let played = site.cancel_at(&config, "\nwaiting\n", &CancelHandle::new().unwrap());
    assert_eq!((played.outcome.status, &*played.outcome.message), (Status::Cancelled, CANCELED));
    assert!(
        !played.text.contains("in script\n") && !played.text.contains("in after"),
        "{}",
        played.text
    );
}

#[test]
fn cancellation_after_the_script_changes_nothing() {
    let cancelled_at = |at: &str, script: &str| {
        let site = JobSite::new().with_gitlab();
        let mut config = job_with_all_stages();
        config["steps"][0]["script"] = json!([script]);
        config["steps"][1]["script"] = json!(["echo in after; sleep 0.2; echo after ended"]);
        let played = site.cancel_at(&config, at, &CancelHandle::new().unwrap());
        assert_order(
            &played.text,
            &["after ended\n", "cache-archiver runs\n", "artifacts-uploader runs\n"],
        );
        (played.outcome.status, played.outcome.exit_code)
    };
    for at in ["in after\n", "cache-archiver runs\n"] {
        assert_eq!(cancelled_at(at, "true"), (Status::Success, 0));
        assert_eq!(cancelled_at(at, "exit 3"), (Status::Failure, 3));
        assert_eq!(cancelled_at(at, "kill -KILL $$"), (Status::Failure, 137));
    }
}

#[test]
fn second_cancellation_ends_everything() {
    let site = JobSite::new().with_gitlab();
    let mut config = job_with_all_stages();
    config["steps"][1]["script"] = json!(["trap '' TERM", FOREVER]);
    let cancel = CancelHandle::new().unwrap();
    let mut is_heard = false;
    let played = site.run_config(&config).run_until(&cancel, |text| {
        if !is_heard && text.contains("\nwaiting\n") {
            is_heard = true;
            cancel.cancel(CancelReason::Requested);
            cancel.cancel(CancelReason::Requested);
        }
    });
    assert!(!played.text.contains("cache-archiver runs"), "{}", played.text);
    assert!(played.text.contains("after_script failed"), "{}", played.text);
    // The script itself succeeded, but its artifacts were not stored.
    assert_ne!(played.outcome.status, Status::Success);
    assert!(!site.path("build.tmp/gitlab_runner_env").exists());
}

#[test]
fn script_has_its_own_time_limit() {
    let site = JobSite::new().with_gitlab();
    let mut config = job_with_all_stages();
    config["steps"][0]["script"] = json!([FOREVER]);
    config["script_timeout"] = json!(2_000_000_000_i64);
    let played = site.run(&config);
    assert_eq!(played.outcome.status, Status::Failure);
    let message = "step \"concrete\": exec: job script timeout exceeded: context deadline exceeded";
    assert_eq!(played.outcome.message, message);
    assert_order(
        &played.text,
        &[
            " step_script did not end within its time limit",
            "in after timedout\n",
            "cache-archiver runs\n",
            "artifacts-uploader runs\n",
        ],
    );
}

#[test]
fn after_script_has_its_own_time_limit() {
    let site = JobSite::new().with_gitlab();
    let mut config = job_with_all_stages();
    config["steps"][1]["script"] = json!([FOREVER]);
    config["after_script_timeout"] = json!(1_000_000_000_i64);
    let played = site.run(&config);
    assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    assert_order(
        &played.text,
        &[
            "in script\n",
            " after_script did not end within its time limit",
            "cache-archiver runs\n",
            "artifacts-uploader runs\n",
        ],
    );
}

#[test]
fn time_limit_of_the_job_ends_all_stages() {
    for by_config in [true, false] {
        let site = JobSite::new().with_gitlab();
        let mut config = job_with_all_stages();
        config["steps"][0]["script"] = json!([FOREVER]);
        if by_config {
            config["timeout"] = json!(2_000_000_000_i64);
        }
        let mut play = site.run_config(&config);
        play.timeout = (!by_config).then(|| Duration::from_secs(2));
        let played = play.run();
        assert_eq!(played.outcome.status, Status::Failure);
        assert!(
            !played.text.contains("in after") && !played.text.contains("cache-archiver runs"),
            "{}",
            played.text
        );
        assert!(!site.path("build.tmp/gitlab_runner_env").exists());
    }
}
