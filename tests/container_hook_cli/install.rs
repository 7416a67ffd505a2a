//! `container-hook install`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::env::{TestEnv, golden};

#[test]
fn the_script_becomes_the_program() {
    let env = TestEnv::new();
    let ran = env.run(&["install", "hook"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("install.txt", &ran.stdout);
    let script = env.path("hook/container-hook.sh");
    let text = fs::read_to_string(&script).unwrap();
    let line = format!("\nexec {}\n", env!("CARGO_BIN_EXE_container-hook"));
    assert!(text.ends_with(&line), "{text}");
    assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o755);
    golden("install.json", &env.run(&["install", "hook", "--format", "json"]).stdout);
}

#[test]
fn the_script_is_what_the_runner_runs() {
    let env = TestEnv::new();
    assert_eq!(env.run(&["install", "hook"]).code, Some(0));
    let mut shell = std::process::Command::new("bash");
    shell.arg("-e").arg(env.path("hook/container-hook.sh")).env_clear();
    let ran = env.run_with_input(shell, b"{\"command\":\"no\"}\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::request: /command: "), "{ran:?}");
}

#[test]
fn a_directory_that_the_runner_cannot_name_is_refused() {
    let env = TestEnv::new();
    for dir in ["with blank", "$HOME", "a;b", "\u{fc}"] {
        let ran = env.run(&["install", dir]);
        assert_eq!(ran.code, Some(1), "{dir}");
        assert!(ran.stderr.contains("the runner cannot call"), "{}", ran.stderr);
        assert!(!env.path(dir).exists(), "{dir}");
    }
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let env = TestEnv::new();
    fs::create_dir(env.path("open")).unwrap();
    fs::set_permissions(env.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let ran = env.run(&["install", "open/hook"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("can be changed by everyone"), "{}", ran.stderr);
}

#[test]
fn users_with_a_meaning_in_sudoers_are_refused() {
    let env = TestEnv::new();
    for user in ["ALL=(ALL)", "a b", "a,b", "%wheel", "-u", ""] {
        let ran = env.run(&["install", "--sudo", &format!("--runner-user={user}"), "hook"]);
        assert_eq!(ran.code, Some(2), "{user}");
    }
}
