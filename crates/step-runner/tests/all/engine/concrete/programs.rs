//! The command lines of GitLab's program, compared by hand with the source of its runner (19.4.0,
//! functions/concrete/run/stages). They only differ in the token, which is an environment variable here.

use std::fs;

use serde_json::{Value, json};
use step_runner::wire::proto::step_result::Status;

use super::job::{JobSite, assert_order, assert_success, job};

/// Returns configurations, and the expected arguments of GitLab's program.
fn table() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"artifact_extract": [
                {"id": 3, "token": "their-token", "artifact_name": "build", "filename": "a.zip"},
                {"id": 4, "token": "x", "artifact_name": "none"},
            ]}),
            "artifacts-downloader --url https://gitlab.example --id 3 token=their-token",
        ),
        (
            json!({"cache_extract": [{"timeout": 10, "sources": [
                {"name": "n", "key": "k-1", "alternate_key": "other",
                 "descriptor": {"url": "https://s/o?X", "head_url": "https://s/h"},
                 "alternate_descriptor": {"url": "https://s/p", "head_url": "https://s/q"}},
            ]}]}),
            "cache-extractor --file ../../CACHE/k-1/cache.zip --timeout 10 --url https://s/o?X --head-url https://s/h \
             --alternate-url https://s/p --alternate-head-url https://s/q",
        ),
        (
            json!({"cache_extract": [{"timeout": 1, "sources": [
                {"name": "n", "key": "k", "descriptor": {
                    "url": "s3://b/o", "go_cloud_url": true, "env": {"STORE_KEY": "first-key"}},
                 "alternate_descriptor": {
                    "url": "s3://b/p", "go_cloud_url": true, "env": {"STORE_KEY": "second-key"}}},
            ]}]}),
            "cache-extractor --file ../../CACHE/k/cache.zip --timeout 1 --gocloud-url s3://b/o \
             --alternate-gocloud-url s3://b/p key=first-key",
        ),
        (
            json!({"cache_archive": [
                {"name": "a<b", "key": "k", "alternate_key": "l", "paths": ["x", "y z"], "untracked": true,
                 "timeout": 5, "max_uploaded_archive_size": 9, "on_success": true,
                 "descriptor": {"url": "https://s/o", "head_url": "https://s/h", "headers": {"H": ["1", "2"]}}},
                {"key": "off", "paths": ["x"], "on_failure": true},
                {"key": "no paths", "on_success": true},
            ]}),
            "cache-archiver --file ../../CACHE/k/cache.zip --timeout 5 --alternate-file ../../CACHE/l/cache.zip \
             --max-uploaded-archive-size 9 --path x --path y|z --untracked --url https://s/o --check-url https://s/h \
             --header H:|1 --header H:|2 metadata={\"cachekey\":\"a\\u003cb\"}",
        ),
        (
            json!({"artifacts_archive": [
                {"artifact_name": "$CI_JOB_NAME", "paths": ["p"], "exclude": ["q"], "untracked": true,
                 "expire_in": "$DAYS days$$", "format": "zip", "type": "archive", "compression_level": "fast",
                 "timeout": 3_600_000_000_000_i64, "response_header_timeout": 600_000_000_000_i64,
                 "on_success": true},
                {"artifact_name": "on failure", "paths": ["p"], "on_failure": true},
            ]}),
            "artifacts-uploader --url https://gitlab.example --id 7 --timeout 1h0m0s --response-header-timeout 10m0s \
             --path p --exclude q --untracked --name $CI_JOB_NAME --expire-in 3|days$ --artifact-format zip \
             --artifact-type archive --compression-level fast token=job-token",
        ),
        (
            json!({"artifacts_archive": [{"paths": ["p"], "on_success": true, "metadata": {
                "runner_id": "1", "repo_url": "https://h/p", "repo_digest": "d", "job_name": "j",
                "executor_name": "docker", "runner_name": "r", "started_at": "2026-01-01T00:00:00Z",
                "schema_version": "v1", "parameters": ["A", "B"]}}]}),
            "artifacts-uploader --url https://gitlab.example --id 7 --generate-artifacts-metadata --runner-id 1 \
             --repo-url https://h/p --repo-digest d --job-name j --executor-name docker --runner-name r \
             --started-at 2026-01-01T00:00:00Z --ended-at TIME --schema-version v1 --metadata-parameter A \
             --metadata-parameter B --path p",
        ),
    ]
}

#[test]
fn command_lines_match_those_of_the_runner() {
    for (part, expected) in table() {
        let mut site = JobSite::new().with_gitlab();
        site.vars.push(("DAYS".to_owned(), "3".to_owned()));
        let mut config = job(&[("script", &["true"])]);
        config["cache_dir"] = json!(site.path("build/../../../CACHE"));
        config.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        let played = site.run(&config);
        assert_success(&played);
        let calls = site.calls();
        let [call] = calls.as_slice() else { panic!("{calls:?}\n{}", played.text) };
        let end = call.iter().position(|word| word.starts_with("token=")).unwrap();
        let (arguments, given) = call.split_at(end);
        let mut expected: Vec<_> =
            expected.split_whitespace().map(|word| word.replace('|', " ")).collect();
        while let Some(last) = expected.pop_if(|last| {
            ["token=", "key=", "metadata="].iter().any(|name| last.starts_with(name))
        }) {
            assert!(given.contains(&last), "{last} is not in {given:?}");
        }
        let mut arguments = arguments.to_vec();
        if let Some(time) = expected.iter().position(|word| word == "TIME") {
            // A time in the format of RFC 3339.
            assert!(arguments[time].ends_with('Z') && arguments[time].len() == 20, "{arguments:?}");
            arguments[time] = "TIME".to_owned();
        }
        // The number of `../` depends on the test's directory.
        let cache = arguments.iter().map(|word| match word.rsplit_once("../") {
            Some((_, below)) => format!("../../{below}"),
            None => word.clone(),
        });
        assert_eq!(cache.collect::<Vec<_>>(), expected);
        // Arguments contain no token.
        assert!(!arguments.iter().any(|word| word.contains("token=") || word.contains("-token")));
    }
}

#[test]
fn failed_restore_is_ignored_and_failed_upload_fails_the_job() {
    let site = JobSite::new().with_gitlab();
    for name in ["artifacts-downloader", "cache-extractor", "cache-archiver", "artifacts-uploader"]
    {
        fs::write(site.path(&format!("fail-{name}")), "").unwrap();
    }
    let mut config = job(&[("script", &["echo script runs"])]);
    let source = |name: &str| json!({"name": name, "key": name});
    config["cache_extract"] =
        json!([{"sources": [source("a"), source("b")], "max_attempts": 2, "warnings": ["look"]}]);
    config["artifact_extract"] = json!([{"id": 3, "token": "t", "artifact_name": "build", "filename": "a", "download_attempts": 2}]);
    assert_success(&site.run(&config));

    config["cache_archive"] = json!([{"key": "k", "paths": ["x"], "on_success": true}]);
    config["artifacts_archive"] =
        json!([{"artifact_name": "n", "paths": ["x"], "on_success": true}]);
    let played = site.run(&config);
    assert_eq!(played.outcome.message, "step \"concrete\": exec: archiving cache k: exit status 5");
    assert_order(
        &played.text,
        &[
            "\x1b[0;33mlook\x1b[0;m\n",
            "Checking cache for a...",
            "Failed to extract cache a: exit status 5",
            "Checking cache for b (fallback)...",
            "Retrying cache extraction (attempt 2/2)...",
            "Failed to extract cache b: exit status 5",
            "Downloading artifacts for build (3)...",
            "Retrying artifact download for build (attempt 2/2)...",
            " Failed to download artifact \"build\": downloading artifacts for build (3): exit status 5\x1b[0m\n",
            "script runs\n",
            " Failed to archive cache \"k\": archiving cache k: exit status 5",
            " Failed to upload artifact \"n\": uploading artifacts \"n\": exit status 5",
        ],
    );
    config["cache_archive"] = json!([]);
    let message = "step \"concrete\": exec: uploading artifacts \"n\": exit status 5";
    assert_eq!(site.run(&config).outcome.message, message);
    // The script's error takes precedence.
    config["steps"][0]["script"] = json!(["exit 3"]);
    config["artifacts_archive"][0]["on_failure"] = json!(true);
    assert_eq!(
        site.run(&config).outcome.message,
        "step \"concrete\": exec: step script: exit status 3"
    );
}

#[test]
fn failed_job_stores_only_files_for_failures() {
    let site = JobSite::new().with_gitlab();
    let mut config = job(&[("script", &["exit 3"])]);
    config["trace_sections"] = json!(true);
    config["cache_archive"] = json!([
        {"key": "good", "paths": ["x"], "on_success": true},
        {"key": "any", "paths": ["x"], "on_success": true, "on_failure": true},
    ]);
    config["artifacts_archive"] =
        json!([{"artifact_name": "log", "paths": ["x"], "on_failure": true}]);
    let played = site.run(&config);
    assert_eq!(played.outcome.exit_code, 3);
    assert_order(
        &played.text,
        &[
            "archive_cache_on_failure",
            "Skipping cache good: not configured for job status failed",
            "Creating cache any...",
            "upload_artifacts_on_failure",
            "artifacts-uploader runs",
        ],
    );
    assert!(site.calls().iter().all(|call| call.contains(&"status=failed".to_owned())));
    // Without a server URL artifacts are not uploaded.
    config["base_url"] = json!("");
    assert!(!site.run(&config).text.contains("upload_artifacts"));
}

#[test]
fn missing_gitlab_program_is_logged_and_the_job_continues() {
    let site = JobSite::new();
    let mut config = job(&[("script", &["echo script runs"])]);
    config["cache_extract"] = json!([{"sources": [{"name": "a", "key": "a"}]}]);
    config["artifact_extract"] =
        json!([{"id": 3, "token": "t", "artifact_name": "build", "filename": "a"}]);
    let played = site.run(&config);
    assert_success(&played);
    assert_order(
        &played.text,
        &[
            "Failed to extract cache a: GitLab's helper program not found: expected gitlab-runner or gitlab-runner-helper in PATH, or gitlab-runner-helper.gitlab in /",
            "Failed to download artifact \"build\"",
            "script runs\n",
        ],
    );
    config["artifacts_archive"] = json!([{"paths": ["x"], "on_success": true}]);
    let played = site.run(&config);
    assert_eq!((played.outcome.status, played.outcome.exit_code), (Status::Failure, 1));
}

#[test]
fn own_program_is_not_taken_for_gitlabs() {
    let site = JobSite::new();
    let own = std::env::current_exe().unwrap();
    std::os::unix::fs::symlink(own, site.path("bin/gitlab-runner")).unwrap();
    super::job::write_program(
        &site.path("bin/gitlab-runner-helper"),
        "#!/bin/sh\necho \"the helper: $1\"\n",
    );
    let mut config = job(&[("script", &["true"])]);
    config["cache_archive"] = json!([{"key": "k", "paths": ["x"], "on_success": true}]);
    let played = site.run(&config);
    assert_success(&played);
    assert!(played.text.contains("the helper: cache-archiver\n"), "{}", played.text);
}
