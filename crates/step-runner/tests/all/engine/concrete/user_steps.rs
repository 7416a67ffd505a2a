//! The `run` keyword of a job.

use std::fs;

use serde_json::{Value, json};
use step_runner::engine::CancelHandle;
use step_runner::wire::proto::step_result::Status;

use super::job::{JobSite, assert_order, assert_success, job};

fn config(steps: Value) -> Value {
    let mut config =
        job(&[("script", &["echo never"]), ("after_script", &["echo after $CI_JOB_STATUS"])]);
    config["run_steps"] = steps;
    config
}

#[test]
fn steps_run_in_their_own_scope_with_job_variables() {
    let mut site = JobSite::new();
    site.vars.push(("JOB".to_owned(), "of the job".to_owned()));
    fs::create_dir_all(site.path("build/s")).unwrap();
    let step = "spec: {inputs: {v: {type: string}}, outputs: {o: {type: string}}}\n---\n\
        exec: {command: [sh, -c, 'echo \"{\\\"name\\\":\\\"o\\\",\\\"value\\\":\\\"$1!\\\"}\" > $2', x, '${{inputs.v}}', '${{output_file}}']}\n";
    fs::write(site.path("build/s/step.yml"), step).unwrap();
    let config = config(json!([
        {"name": "a", "step": "./s", "inputs": {"v": "${{vars.JOB}}"}},
        {"name": "b", "script": "echo \"<${{steps.a.outputs.o}}> $JOB\"; echo ADDED=1 >> $GITLAB_ENV"},
    ]));
    let mut config = config;
    config["steps"][1]["script"] = json!(["echo after $ADDED"]);
    let played = site.run(&config);
    assert_success(&played);
    assert_order(
        &played.text,
        &[
            "Running step name=a\n",
            "Running step name=b\n",
            "<of the job!> of the job\n",
            "after 1\n",
        ],
    );
    assert!(!played.text.contains("never"), "{}", played.text);
    // The user's steps are below the function in the result.
    let root = played.outcome.result.sub_step_results;
    let names: Vec<_> = root[0].sub_step_results[0]
        .sub_step_results
        .iter()
        .map(|result| result.step.clone().unwrap_or_default().name)
        .collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn exports_of_steps_end_with_the_steps() {
    let site = JobSite::new();
    let mut config = config(json!([
        {"name": "a", "step": "builtin://script", "inputs": {"script": "true"}},
    ]));
    fs::create_dir_all(site.path("build/e")).unwrap();
    let step = "{}\n---\nexec: {command: [sh, -c, 'echo \"{\\\"name\\\":\\\"X\\\",\\\"value\\\":\\\"1\\\"}\" > $1', x, '${{export_file}}']}\n";
    fs::write(site.path("build/e/step.yml"), step).unwrap();
    config["run_steps"] =
        json!([{"name": "a", "step": "./e"}, {"name": "b", "script": "echo \"in [$X]\""}]);
    config["steps"][1]["script"] = json!(["echo \"after [$X]\""]);
    let played = site.run(&config);
    assert_success(&played);
    assert_order(&played.text, &["in [1]\n", "after []\n"]);
}

#[test]
fn failing_step_ends_the_job_with_its_code() {
    let site = JobSite::new();
    let played = site.run(&config(json!([{"name": "a", "script": "exit 3"}])));
    let message = "step \"concrete\": exec: step \"a\": exec: exit status 3";
    assert_eq!((played.outcome.exit_code, &*played.outcome.message), (3, message));
    assert_order(&played.text, &["after failed\n"]);
}

#[test]
fn steps_are_cancelled_and_limited_like_scripts() {
    let forever = json!([
        {"name": "a", "script": "echo waiting; while :; do sleep 0.05; done"},
        {"name": "b", "script": "echo never"},
        {"name": "c", "script": "echo always", "if": "always()"},
    ]);
    let site = JobSite::new();
    let played =
        site.cancel_at(&config(forever.clone()), "waiting\n", &CancelHandle::new().unwrap());
    assert_eq!(played.outcome.status, Status::Cancelled);
    assert_order(
        &played.text,
        &["waiting\n", "always\n", "Script canceled externally", "after canceled\n"],
    );
    assert!(!played.text.contains("never"), "{}", played.text);

    let mut config = config(forever);
    config["script_timeout"] = json!(2_000_000_000_i64);
    let played = site.run(&config);
    assert!(
        played.outcome.message.contains("job script timeout exceeded"),
        "{}",
        played.outcome.message
    );
    assert_order(
        &played.text,
        // On a busy machine, the time may be over before the first step starts.
        &["always\n", "did not end within its time limit", "after timedout\n"],
    );
    assert!(!played.text.contains("never"), "{}", played.text);
}
