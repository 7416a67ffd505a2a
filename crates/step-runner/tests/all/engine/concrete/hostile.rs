//! Invalid configurations, and secrets.

use std::fs;

use serde_json::{Value, json};
use step_runner::wire::proto::step_result::Status;

use super::job::{JobSite, assert_success, job};

#[test]
fn unknown_and_null_fields_are_ignored() {
    let mut config = job(&[("script", &["true"])]);
    config["new_field"] = json!({"a": [1]});
    config["get_sources"]["new_field"] = json!(1);
    config["steps"][0]["new_field"] = json!(null);
    config["cache_extract"] = json!(null);
    config["token"] = json!(null);
    assert_success(&JobSite::new().run(&config));
    // An empty configuration is a job without work, and only lacks the strategy for fetching sources.
    let message = "step \"concrete\": exec: fetching sources: unknown GIT_STRATEGY: ";
    assert_eq!(JobSite::new().run(&json!({})).outcome.message, message);
}

#[test]
fn wrong_types_are_rejected_without_their_values() {
    let secret = "glpat-canary";
    for text in [
        String::new(),
        secret.to_owned(),
        format!("\"{secret}\""),
        format!("[\"{secret}\"]"),
        format!("{{\"id\": \"{secret}\"}}"),
        format!("{{\"get_sources\": \"{secret}\"}}"),
        format!("{{\"get_sources\": {{\"instead_ofs\": [[\"{secret}\"]]}}}}"),
        format!("{{\"steps\": {{\"{secret}\": 1}}}}"),
        format!("{{\"token\": \"{secret}\""),
        "[".repeat(100_000),
        format!("{{\"timeout\": {}}}", "9".repeat(400)),
    ] {
        let played = JobSite::new().run_text(&text).run();
        assert_eq!(played.outcome.status, Status::Failure);
        let message = &played.outcome.message;
        assert!(message.starts_with("step \"concrete\": exec: config: "), "{message}");
        assert!(!message.contains("canary") && !played.text.contains("canary"), "{message}");
    }
}

#[test]
fn unbounded_numbers_are_limited() {
    let mut config = job(&[("script", &["true"])]);
    config["timeout"] = json!(i64::MAX);
    config["script_timeout"] = json!(-1);
    config["after_script_timeout"] = json!(i64::MIN);
    config["get_sources"] = json!({"git_strategy": "fetch", "repo_url": "/nothing", "max_attempts": -5, "depth": i64::MIN});
    let played = JobSite::new().run(&config);
    assert!(played.outcome.message.ends_with("exit status 128"), "{}", played.outcome.message);
    config["get_sources"] = json!({"git_strategy": "none"});
    config["artifact_extract"] =
        json!([{"id": i64::MIN, "filename": "x", "download_attempts": i64::MAX}]);
    let played = JobSite::new().run(&config);
    assert_success(&played);
    assert_eq!(played.text.matches("Failed to download").count(), 1);
}

#[test]
fn files_in_place_of_those_of_the_job_are_replaced() {
    let site = JobSite::new();
    fs::create_dir_all(site.path("build.tmp/gitlab_runner_env/x")).unwrap();
    assert_success(&site.run(&job(&[("script", &["echo A=1 >> $GITLAB_ENV"])])));
    // A FIFO created by a script does not block the job.
    let line = "rm $GITLAB_ENV; mkfifo $GITLAB_ENV";
    let played = site.run(&job(&[("script", &[line]), ("after_script", &["echo after"])]));
    assert_success(&played);
    assert!(played.text.contains("Cannot read the file GITLAB_ENV"), "{}", played.text);
    assert!(played.text.contains("\nafter\n"), "{}", played.text);
}

#[test]
fn secrets_are_masked_and_in_no_output_or_argument() {
    let site = JobSite::new().with_gitlab();
    let mut config = job(&[("script", &["true"])]);
    config["token"] = json!("canary-job");
    config["artifact_extract"] = json!([{"id": 1, "token": "canary-artifact", "filename": "f"}]);
    config["get_sources"] = json!({
        "git_strategy": "fetch", "repo_url": "http://u:canary-repository@127.0.0.1:1/p.git",
        "instead_ofs": [["http://u:canary-instead@127.0.0.1:1", "http://127.0.0.1:1"]],
        "max_attempts": 2, "git_fetch_flags": ["--verbose"],
    });
    config["cache_archive"] = json!([{"key": "k", "paths": ["x"], "on_success": true, "on_failure": true,
        "descriptor": {"url": "https://s/o?sig=canary-url", "env": {"STORE_KEY": "canary-key"}}}]);
    // A git wrapper that records its arguments.
    let wrapper = format!(
        "#!/bin/sh\necho \"$@\" >> {}\nexec {} \"$@\"\n",
        site.path("arguments").display(),
        fs::canonicalize(site.path("bin/git")).unwrap().display()
    );
    fs::remove_file(site.path("bin/git")).unwrap();
    super::job::write_program(&site.path("bin/git"), &wrapper);
    let played = site.run(&config);
    assert_eq!(played.outcome.status, Status::Failure);
    let arguments = site.text("arguments");
    assert!(arguments.contains("fetch origin") && !arguments.contains("canary"), "{arguments}");
    assert!(!played.outcome.message.contains("canary"), "{}", played.outcome.message);
    assert!(!played.text.contains("canary"), "{}", played.text);
    // In case git prints the URL of a redirect.
    for secret in ["canary-repository", "canary-instead"] {
        assert!(played.masked.iter().any(|masked| masked == secret), "{secret}");
    }

    config["get_sources"] = json!({"git_strategy": "none"});
    let played = site.run(&config);
    assert_success(&played);
    assert!(!played.text.contains("canary"), "{}", played.text);
    for secret in ["canary-job", "canary-artifact", "sig=canary-url", "canary-key"] {
        assert!(played.masked.iter().any(|masked| masked == secret), "{secret}");
    }
    // Only the URL of a cache remains, for which GitLab's program has no alternative to an argument.
    let words = site.calls().concat();
    let is_argument = |word: &&String| !word.starts_with("token=") && !word.starts_with("key=");
    let shown: Vec<_> =
        words.iter().filter(is_argument).filter(|word| word.contains("canary")).collect();
    assert_eq!(shown, ["https://s/o?sig=canary-url"]);
}

#[test]
fn large_configuration_is_supported() {
    let mut config = job(&[("script", &["true"])]);
    config["padding"] = Value::String("x".repeat(1 << 20));
    let line = format!(": {}", "y".repeat(200_000));
    config["steps"][0]["script"] = json!([line, "exit 8"]);
    assert_eq!(JobSite::new().run(&config).outcome.exit_code, 8);
}
