//! Requests that cannot be handled: the hook reports the reason and exits with 1.

use std::fs;
use std::path::Path;

use oci_hooks_testsupport::cli::TestEnv;

use crate::PROGRAM;

#[test]
fn invalid_requests_are_explained_in_the_step_log() {
    let env = TestEnv::new(PROGRAM);
    let data =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../container-hook-job/tests/data/requests");
    let mut count = 0;
    for entry in fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("bad-") {
            continue;
        }
        let ran = env.run_with_input(env.command(&[]), &fs::read(&path).unwrap());
        assert_eq!(ran.code, Some(1), "{name}: {ran:?}");
        let lines: Vec<_> = ran.stdout.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("::error::"), "{name}: {ran:?}");
        assert_eq!(ran.stderr, "", "{name}");
        count += 1;
    }
    assert!(count >= 11, "{count}");
}

#[test]
fn call_without_a_runner_is_rejected() {
    let env = TestEnv::new(PROGRAM);
    let request = br#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    let ran = env.run_with_input(env.command(&[]), request);
    assert_eq!(ran.code, Some(1));
    let expected = "::error::the environment has no RUNNER_TEMP: only GitHub's runner calls";
    assert!(ran.stdout.starts_with(expected), "{ran:?}");
}

#[test]
fn runner_directories_must_be_absolute() {
    let env = TestEnv::new(PROGRAM);
    let request = br#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    for temp in ["_work/_temp", "/srv/_work/../_temp"] {
        let mut command = env.command(&[]);
        command.env("RUNNER_NAME", "a").env("RUNNER_TEMP", temp).env("GITHUB_WORKSPACE", "/w");
        let ran = env.run_with_input(command, request);
        assert!(ran.stdout.starts_with("::error::RUNNER_TEMP must be an absolute path"), "{ran:?}");
    }
}

#[test]
fn unusable_settings_fail_the_step() {
    let env = TestEnv::new(PROGRAM);
    env.write("settings.toml", "[runtime]\nordr = []\n");
    let request = br#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    let ran = env.run_with_input(env.command(&[]), request);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::{ROOT}/settings.toml:2:1: unknown field"), "{ran:?}");
}
