//! `oci-hooks validate`.

use serde_json::{Value, json};

use crate::cli::env::{HookEnv, golden};

fn files() -> HookEnv {
    let env = HookEnv::with_hooks();
    env.write("syntax.json", "{\n  \"version\": \"1.0.0\",\n}");
    env.write("stage.json", r#"{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["preStart"]}"#);
    env.write("old.json", r#"{"hook": "/bin/true", "stages": ["poststop"], "cmds": ["("]}"#);
    env
}

const FILES: [&str; 6] = [
    "usr/10-python.json",
    "usr/30-filter.json",
    "usr/40-gone.json",
    "syntax.json",
    "stage.json",
    "old.json",
];

#[test]
fn validate_reports_errors_with_positions() {
    let env = files();
    let line: Vec<_> = ["validate"].iter().chain(&FILES).copied().collect();
    let ran = env.run(&line);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""));
    golden("validate.txt", &ran.stdout);
    let json: Vec<_> = line.iter().chain(&["--format", "json"]).copied().collect();
    golden("validate.json", &env.run(&json).stdout);
}

#[test]
fn consumers_are_compared() {
    let env = files();
    let line: Vec<_> = ["validate", "--consumers"].iter().chain(&FILES).copied().collect();
    let ran = env.run(&line);
    assert_eq!(ran.code, Some(1));
    golden("validate-consumers.txt", &ran.stdout);
    let ran = env.run(&["validate", "--consumers", "usr/30-filter.json", "--format", "json"]);
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    let consumers = &rows[0]["consumers"];
    assert_eq!(consumers["podman"]["accepted"], true);
    assert_eq!(consumers["crio"]["fault"]["class"], "unknown-stage");
    assert_eq!(consumers.as_object().unwrap().len(), 7);
}

#[test]
fn accepted_files_exit_with_zero() {
    let env = files();
    assert_eq!(env.run(&["validate", "usr/10-python.json"]).code, Some(0));
    assert_eq!(env.run(&["validate", "--no-path-check", "usr/40-gone.json"]).code, Some(0));
    assert_eq!(env.run(&["validate", "--as", "crio", "usr/30-filter.json"]).code, Some(1));
    let text = env.read("usr/10-python.json");
    let ran = env.run_with_input(&["validate", "-"], &text);
    assert_eq!(ran.stdout, "-: valid, schema 1.0.0\n");
    let ran = env.run_with_input(&["validate", "/proc/self/fd/0"], &text);
    assert_eq!(ran.stdout, "/proc/self/fd/0: valid, schema 1.0.0\n");
}

#[test]
fn unreadable_file_does_not_hide_others() {
    let env = files();
    let ran = env.run(&["validate", "gone.json", "usr", "usr/10-python.json", "--format", "json"]);
    assert_eq!(ran.code, Some(2));
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(rows[0]["path"], json!("usr/10-python.json"));
    assert!(ran.stderr.contains("gone.json: ") && ran.stderr.contains("usr: "), "{}", ran.stderr);
}
