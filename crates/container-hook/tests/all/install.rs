//! `container-hook install`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use oci_hooks_testsupport::cli::{ProgramRun, TestEnv, golden};

use crate::{DATA, PROGRAM};

/// Returns an environment whose settings name a fake runtime.
fn with_runtime() -> TestEnv {
    let mut env = TestEnv::new(PROGRAM);
    env.copy_program();
    let settings = fs::read_to_string(env.path("settings.toml")).unwrap();
    let runc = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/runc");
    env.write("settings.toml", &format!("{settings}[runtime]\npath = {runc:?}\n"));
    env
}

#[test]
fn install_without_a_runtime_is_rejected() {
    let mut env = TestEnv::new(PROGRAM);
    env.copy_program();
    env.write("settings.toml", "[runtime]\npath = \"/nonexistent/runc\"\n");
    let ran = env.run_apart(&["install", "hook"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    let said =
        "error: containers cannot run: cannot find an OCI runtime: no executable /nonexistent/runc";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("\n  hint: install runc or crun (apt install runc"),
        "{}",
        ran.stderr
    );
    assert!(!env.path("hook").exists());
}

/// Returns standard error without the warnings and hints about this machine.
fn errors(ran: &ProgramRun) -> String {
    let is_warning = |line: &&str| line.starts_with("warning: ") || line.starts_with("  hint: ");
    let lines = ran.stderr.lines().filter(|line| !is_warning(line));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Converts a user's output to that of root, which has no number of user ids.
fn as_of_root(text: &str) -> String {
    let is_of_users = |line: &&str| line.starts_with("Containers run without root, ");
    let number = |line: &str| line.trim_start().starts_with("\"user_ids\": ");
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if is_of_users(&line) {
            lines.pop();
        } else if number(line) {
            lines.push("  \"user_ids\": null".to_owned());
        } else {
            lines.push(line.replace("doctor` as this user", "doctor`"));
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn installed_script_executes_the_program() {
    let env = with_runtime();
    let ran = env.run_apart(&["install", "hook"]);
    assert_eq!((ran.code, errors(&ran).as_str()), (Some(0), ""));
    golden(DATA, "install.txt", &as_of_root(&ran.stdout));
    let script = env.path("hook/container-hook.sh");
    let text = fs::read_to_string(&script).unwrap();
    let line = format!("\nexec {}\n", env.program().display());
    assert!(text.ends_with(&line), "{text}");
    assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o755);
    let ran = env.run_apart(&["install", "hook", "--format", "json"]);
    golden(DATA, "install.json", &as_of_root(&ran.stdout));
}

#[test]
fn runner_can_run_the_installed_script() {
    let env = with_runtime();
    let installed = env.run_apart(&["install", "hook"]);
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let mut shell = std::process::Command::new("bash");
    shell.arg("-e").arg(env.path("hook/container-hook.sh")).env_clear();
    let ran = env.run_with_input(shell, b"{\"command\":\"no\"}\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::request: /command: "), "{ran:?}");
}

#[test]
fn directory_that_the_runner_cannot_name_is_rejected() {
    let env = with_runtime();
    for dir in ["with blank", "$HOME", "a;b", "\u{fc}"] {
        let ran = env.run_apart(&["install", dir]);
        assert_eq!(ran.code, Some(1), "{dir}");
        assert!(ran.stderr.contains("invalid path"), "{}", ran.stderr);
        assert!(!env.path(dir).exists(), "{dir}");
    }
}

#[test]
fn directory_writable_by_others_is_rejected() {
    let env = with_runtime();
    fs::create_dir(env.path("open")).unwrap();
    fs::set_permissions(env.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let ran = env.run_apart(&["install", "open/hook"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is writable by everyone"), "{}", ran.stderr);
    assert!(!env.path("open/hook").exists(), "nothing is made before it is refused");
}

#[test]
fn install_does_not_follow_links_of_other_users() {
    if !rustix::process::geteuid().is_root() {
        // Only root can change the owner of a link.
        return;
    }
    let env = with_runtime();
    fs::create_dir(env.path("mine")).unwrap();
    std::os::unix::fs::symlink("mine", env.path("link")).unwrap();
    std::os::unix::fs::lchown(env.path("link"), Some(12345), None).unwrap();
    let ran = env.run_apart(&["install", "link/new/hook"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("link is owned by user 12345, who can change it"), "{ran:?}");
    assert_eq!(fs::read_dir(env.path("mine")).unwrap().count(), 0);
    // Links owned by root are followed.
    std::os::unix::fs::lchown(env.path("link"), Some(0), None).unwrap();
    let ran = env.run_apart(&["install", "link/new/hook"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(env.path("mine/new/hook/container-hook.sh").exists());
}

#[test]
fn sudo_option_is_rejected() {
    let env = with_runtime();
    let ran = env.run_apart(&["install", "--sudo", "hook"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let said = "error: --sudo is not supported: containers of an ordinary user need no root\n  hint: run \
                `container-hook install DIR` as the runner's user";
    assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    assert!(!env.path("hook").exists());
}

#[test]
fn program_in_a_temporary_directory_is_warned_of() {
    if !rustix::process::geteuid().is_root() {
        // An ordinary user does not trust the directory of another user's program.
        return;
    }
    let env = with_runtime();
    fs::create_dir(env.path("tmp")).unwrap();
    fs::set_permissions(env.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    let program = env.path("tmp/program");
    fs::copy(env!("CARGO_BIN_EXE_container-hook"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = std::process::Command::new(program);
    command.current_dir(env.path(".")).env_clear().arg("--config").arg(env.path("settings.toml"));
    command.args(["install", "hook"]);
    let ran = env.run_command_apart(command);
    let said = "warning: {ROOT}/tmp is emptied, at the latest when this machine starts, and ";
    assert_eq!((ran.code, ran.stderr.contains(said)), (Some(0), true), "{ran:?}");
}
