//! Requests that cannot be carried out: they say why, and end with 1.

use std::fs;
use std::path::Path;

use crate::env::TestEnv;

#[test]
fn bad_requests_say_why_in_the_log_of_the_step() {
    let env = TestEnv::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/container-hook/requests");
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
fn who_is_no_runner_is_told_so() {
    let env = TestEnv::new();
    let request = br#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    let ran = env.run_with_input(env.command(&[]), request);
    assert_eq!(ran.code, Some(1));
    let expected = "::error::the environment has no RUNNER_TEMP: only GitHub's runner calls";
    assert!(ran.stdout.starts_with(expected), "{ran:?}");
}

#[test]
fn directories_of_a_runner_are_absolute() {
    let env = TestEnv::new();
    let request = br#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    for temp in ["_work/_temp", "/srv/_work/../_temp"] {
        let mut command = env.command(&[]);
        command.env("RUNNER_NAME", "a").env("RUNNER_TEMP", temp).env("GITHUB_WORKSPACE", "/w");
        let ran = env.run_with_input(command, request);
        assert!(ran.stdout.starts_with("::error::RUNNER_TEMP must be an absolute path"), "{ran:?}");
    }
}

#[test]
fn settings_that_cannot_be_used_fail_the_step() {
    let env = TestEnv::new();
    env.write("settings.toml", "[runtime]\nordr = []\n");
    let request = br#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    let ran = env.run_with_input(env.command(&[]), request);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::{ROOT}/settings.toml:2:1: unknown field"), "{ran:?}");
}

#[test]
fn what_is_not_from_the_other_end_of_sudo_is_refused() {
    let env = TestEnv::new();
    let ran = env.run_with_input(env.command(&["as-root"]), b"{\"command\":\"cleanup_job\"}\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::malformed relayed request"), "{ran:?}");
}

#[test]
fn the_far_end_passes_on_request_code_and_nothing_unknown() {
    let env = TestEnv::new();
    let request = r#"{"command":"cleanup_job","responseFile":null,"args":{},"state":null}"#;
    let variables = r#"{"RUNNER_NAME":"a","RUNNER_TEMP":"relative","GITHUB_WORKSPACE":"/w"}"#;
    let header = format!(r#"{{"variables":{variables},"request_bytes":{}}}"#, request.len());
    let message = format!("{header}\n{request}");
    let mut command = env.command(&["as-root"]);
    command.env("SUDO_UID", "1000").env("SUDO_GID", "1000");
    let ran = env.run_with_open_input(command, message.as_bytes());
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::RUNNER_TEMP must be an absolute path"), "{ran:?}");
}

#[test]
fn the_far_end_takes_nobody_for_root_whom_sudo_does_not_name() {
    let env = TestEnv::new();
    let message = "{\"variables\":{},\"request_bytes\":2}\n{}";
    for ids in [&[][..], &[("SUDO_UID", "1000")], &[("SUDO_UID", ""), ("SUDO_GID", "x")]] {
        let mut command = env.command(&["as-root"]);
        command.envs(ids.iter().copied());
        let ran = env.run_with_input(command, message.as_bytes());
        assert_eq!(ran.code, Some(1));
        assert!(ran.stdout.contains("called by sudo alone"), "{ids:?}: {ran:?}");
    }
}
