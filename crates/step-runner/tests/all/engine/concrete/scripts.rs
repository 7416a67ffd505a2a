//! Scripts and their environment.

use std::fs;

use serde_json::json;

use super::job::{JobSite, assert_order, assert_success, job};

#[test]
fn script_lines_are_shown_run_and_pass_variables_on() {
    let mut site = JobSite::new();
    site.vars.push(("JOB".to_owned(), "of the job".to_owned()));
    let first: &[&str] = &[
        "echo \"$JOB $CI_JOB_STATUS\"",
        "",
        "echo 1\necho 2",
        "echo \"LATER=set; A\" >> $GITLAB_ENV; X=1",
    ];
    let config = job(&[
        ("script", first),
        ("release", &["echo \"$LATER [$X]\""]),
        ("after_script", &["echo \"after $LATER $CI_JOB_STATUS\""]),
    ]);
    let played = site.run(&config);
    assert_success(&played);
    let green = |line: &str| format!("\x1b[32;1m$ {line}\x1b[0m\n");
    let expected = green(first[0])
        + "of the job running\n"
        + &green("echo 1 # collapsed multi-line command")
        + "1\n2\n"
        + &green(first[3])
        + &green("echo \"$LATER [$X]\"")
        + "set; A []\n"
        + &green("echo \"after $LATER $CI_JOB_STATUS\"")
        + "after set; A success\n";
    let log = played.text.replace("\x1b[32;1mSkipping Git repository setup\x1b[0;m\n", "");
    let log = log.replace("\x1b[32;1mSkipping build directory cleanup step\x1b[0;m\n", "");
    assert_eq!(log, expected);
    // The directory for temporary files is empty.
    assert_eq!(fs::read_dir(site.path("build.tmp")).unwrap().count(), 0);
}

#[test]
fn failing_script_ends_the_job_with_its_code_after_after_script() {
    for (line, message, code) in [
        ("(exit 3)", "exit status 3", 3),
        ("exit 255", "exit status 255", 255),
        ("false | cat", "exit status 1", 1),
        // A syntax error.
        ("if", "exit status 2", 2),
    ] {
        let site = JobSite::new();
        let config = job(&[
            ("script", &["echo first", line, "echo never"]),
            ("release", &["echo never"]),
            ("after_script", &["echo after $CI_JOB_STATUS", "exit 9"]),
        ]);
        let played = site.run(&config);
        let message = format!("step \"concrete\": exec: step script: {message}");
        assert_eq!(
            (played.outcome.exit_code, &played.outcome.message),
            (code, &message),
            "{}",
            played.text
        );
        assert_order(
            &played.text,
            &[
                "first\n",
                "after failed\n",
                "after_script failed, but job will continue unaffected: step after_script: exit status 9",
            ],
        );
        assert!(!played.text.contains("\nnever"), "{}", played.text);
    }
}

#[test]
fn script_with_a_killed_shell_fails() {
    let played = JobSite::new().run(&job(&[("script", &["kill -KILL $$"])]));
    let message = "step \"concrete\": exec: step script: signal: killed";
    assert_eq!((played.outcome.exit_code, &*played.outcome.message), (137, message));
}

#[test]
fn signals_that_scripts_send_to_themselves_are_no_failure() {
    for signal in ["USR1", "USR2", "HUP", "PIPE"] {
        assert_success(&JobSite::new().run(&job(&[("script", &[&format!("kill -{signal} $$")])])));
    }
}

#[test]
fn after_script_errors_count_if_configured() {
    let site = JobSite::new();
    let mut config = job(&[("script", &["true"]), ("after_script", &["exit 4"])]);
    assert_success(&site.run(&config));
    config["after_script_ignore_errors"] = json!(false);
    let played = site.run(&config);
    assert_eq!(played.outcome.message, "step \"concrete\": exec: step after_script: exit status 4");
    // The script's error takes precedence.
    config["steps"][0]["script"] = json!(["exit 3"]);
    assert_eq!(site.run(&config).outcome.exit_code, 3);
}

#[test]
fn stages_are_sections_if_the_runner_requests_them() {
    let site = JobSite::new().with_gitlab();
    let mut config =
        job(&[("script", &["echo hello", "echo a\necho b"]), ("after_script", &["true"])]);
    config["trace_sections"] = json!(true);
    config["steps"][0]["script_sections"] = json!(true);
    config["cache_archive"] = json!([{"key": "k", "paths": ["x"], "on_success": true}]);
    let played = site.run(&config);
    assert_success(&played);
    let sections = ["get_sources", "step_script", "after_script", "archive_cache"];
    let marks = sections.map(|name| [format!(":{name}\r\x1b[0K")]).concat();
    for (mark, next) in marks.iter().zip(marks.iter().skip(1)) {
        assert_order(
            &played.text,
            &["section_start:", mark, "section_end:", mark, "section_start:", next],
        );
    }
    assert_order(
        &played.text,
        &[
            "section_start:",
            ":script_1[hide_duration=true,collapsed=true]\r\x1b[0K\x1b[32;1m$ echo a\necho b\x1b[0m\n",
            "section_end:",
            ":script_1\r\x1b[0Ka\nb\n",
        ],
    );
}

#[test]
fn a_login_shell_reads_the_profile() {
    let site = JobSite::new();
    fs::write(site.path("home/.profile"), "FROM_PROFILE=yes\n").unwrap();
    let mut config = job(&[("script", &["echo \"<$FROM_PROFILE>\""])]);
    // The outer shell reads the profile, and its subshell runs the lines.
    config["login_shell"] = json!(true);
    config["steps"][0]["use_legacy_bash_eval"] = json!(true);
    let played = site.run(&config);
    assert_success(&played);
    assert!(played.text.contains("<yes>\n"), "{}", played.text);
    config["login_shell"] = json!(false);
    assert!(site.run(&config).text.contains("<>\n"));
}

#[test]
fn large_script_runs_without_being_an_argument() {
    let site = JobSite::new();
    let mut play = site.run_config(&job(&[]));
    let comment = format!("# {}", "canary ".repeat((7 << 20) / 7));
    let look = "grep -c canary /proc/$$/cmdline || true";
    let config = job(&[("script", &[&format!("true\n{comment}"), look, "exit 6"])]);
    let step_runner::document::StepAction::Run(run) = &mut play.steps.definition.action else {
        panic!("it has steps")
    };
    // Documents have a lower size limit.
    let config = step_runner::ExprValue::String(config.to_string());
    run.steps[0].inputs.insert("config".to_owned(), config);
    let played = play.run();
    assert_eq!(played.outcome.exit_code, 6, "{}", played.outcome.message);
    assert!(played.text.contains("\n0\n"), "{}", played.text);
}

#[test]
fn shell_without_script_support_is_named() {
    let mut config = job(&[("script", &["true"])]);
    config["shell"] = json!("pwsh");
    let message = "step \"concrete\": exec: step script: shell \"pwsh\" is not supported: expected bash or sh";
    assert_eq!(JobSite::new().run(&config).outcome.message, message);
}
