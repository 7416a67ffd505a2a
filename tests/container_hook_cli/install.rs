//! `container-hook install`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::env::{Ran, TestEnv, golden};

/// Returns settings that name a runtime, which this machine need not have.
fn with_runtime() -> TestEnv {
    let env = TestEnv::new();
    let settings = fs::read_to_string(env.path("settings.toml")).unwrap();
    let runc = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/container-hook/runc");
    env.write("settings.toml", &format!("{settings}[runtime]\npath = {runc:?}\n"));
    env
}

#[test]
fn nothing_is_installed_where_no_runtime_is() {
    let env = TestEnv::new();
    env.write("settings.toml", "[runtime]\npath = \"/nonexistent/runc\"\n");
    let ran = env.run(&["install", "hook"]);
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

/// Returns what was said, but for where this test's program is.
fn without_place(ran: &Ran) -> String {
    let lines = ran.stderr.lines().filter(|line| !line.contains(" is emptied, "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns what was printed as root gets it: for others it says how many ids their containers have.
fn as_of_root(text: &str) -> String {
    let is_of_users = |line: &&str| line.starts_with("Containers run without root, ");
    let number = |line: &str| line.trim_start().starts_with("\"user_ids\": ");
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if is_of_users(&line) {
            lines.pop();
        } else if number(line) {
            lines.push("  \"user_ids\": null,".to_owned());
        } else {
            lines.push(line.replace("doctor` as this user", "doctor`"));
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_script_becomes_the_program() {
    let env = with_runtime();
    let ran = env.run(&["install", "hook"]);
    assert_eq!((ran.code, without_place(&ran).as_str()), (Some(0), ""));
    golden("install.txt", &as_of_root(&ran.stdout));
    let script = env.path("hook/container-hook.sh");
    let text = fs::read_to_string(&script).unwrap();
    let line = format!("\nexec {}\n", env!("CARGO_BIN_EXE_container-hook"));
    assert!(text.ends_with(&line), "{text}");
    assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o755);
    let ran = env.run(&["install", "hook", "--format", "json"]);
    golden("install.json", &as_of_root(&ran.stdout));
}

#[test]
fn the_script_is_what_the_runner_runs() {
    let env = with_runtime();
    assert_eq!(env.run(&["install", "hook"]).code, Some(0));
    let mut shell = std::process::Command::new("bash");
    shell.arg("-e").arg(env.path("hook/container-hook.sh")).env_clear();
    let ran = env.run_with_input(shell, b"{\"command\":\"no\"}\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with("::error::request: /command: "), "{ran:?}");
}

#[test]
fn a_directory_that_the_runner_cannot_name_is_refused() {
    let env = with_runtime();
    for dir in ["with blank", "$HOME", "a;b", "\u{fc}"] {
        let ran = env.run(&["install", dir]);
        assert_eq!(ran.code, Some(1), "{dir}");
        assert!(ran.stderr.contains("invalid path"), "{}", ran.stderr);
        assert!(!env.path(dir).exists(), "{dir}");
    }
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let env = with_runtime();
    fs::create_dir(env.path("open")).unwrap();
    fs::set_permissions(env.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let ran = env.run(&["install", "open/hook"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is writable by everyone"), "{}", ran.stderr);
    assert!(!env.path("open/hook").exists(), "nothing is made before it is refused");
}

#[test]
fn nothing_is_made_behind_a_link_of_somebody_else() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can give a link away.
        return;
    }
    let env = with_runtime();
    fs::create_dir(env.path("mine")).unwrap();
    std::os::unix::fs::symlink("mine", env.path("link")).unwrap();
    std::os::unix::fs::lchown(env.path("link"), Some(12345), None).unwrap();
    let ran = env.run(&["install", "link/new/hook"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("link is owned by user 12345, who can change it"), "{ran:?}");
    assert_eq!(fs::read_dir(env.path("mine")).unwrap().count(), 0);
    // Root's own link is a way like any other.
    std::os::unix::fs::lchown(env.path("link"), Some(0), None).unwrap();
    assert_eq!(env.run(&["install", "link/new/hook"]).code, Some(0));
    assert!(env.path("mine/new/hook/container-hook.sh").exists());
}

#[test]
fn users_with_a_meaning_in_sudoers_are_refused() {
    let env = with_runtime();
    for user in ["ALL=(ALL)", "a b", "a,b", "%wheel", "-u", ""] {
        let ran = env.run(&["install", "--sudo", &format!("--runner-user={user}"), "hook"]);
        assert_eq!(ran.code, Some(2), "{user}");
    }
}

/// Returns the name of the user who runs this test.
fn own_name() -> String {
    let output = std::process::Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_directories_of_a_runner_by_sudo_are_recorded_once() {
    let env = with_runtime();
    let before = format!("# mine\n{}", fs::read_to_string(env.path("settings.toml")).unwrap());
    env.write("settings.toml", &before);
    fs::create_dir_all(env.path("runner/_work")).unwrap();
    fs::create_dir(env.path("tools")).unwrap();
    std::os::unix::fs::symlink("runner", env.path("current")).unwrap();
    let user = format!("--runner-user={}", own_name());
    let current = env.path("current").display().to_string();
    let args =
        ["install", "--sudo", &user, "--runner-dir", &current, "--tool-dir", "tools", "hook"];
    // The script's way must be trusted, the program of a test need not be.
    let run = |more: &[&str]| env.run(&[&args[..], more].concat());
    let ran = run(&["--format", "json"]);
    if ran.code != Some(0) {
        // The program of the test is not root's.
        assert!(
            ran.stderr.contains("the program that the runner calls is writable by non-root users"),
            "{ran:?}"
        );
        return;
    }
    assert_eq!(without_place(&ran), "note: {ROOT}/current is recorded as {ROOT}/runner\n");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let expected = json!({
        "settings": "{ROOT}/settings.toml",
        "directories": ["{ROOT}/runner"],
        "tool_directories": ["{ROOT}/tools"],
    });
    assert_eq!(answer["recorded"], expected);
    let first = fs::read_to_string(env.path("settings.toml")).unwrap();
    assert!(first.starts_with(&before), "{first}");
    assert_eq!(
        fs::metadata(env.path("settings.toml")).unwrap().permissions().mode() & 0o777,
        0o644
    );
    assert_eq!(run(&[]).code, Some(0));
    assert_eq!(fs::read_to_string(env.path("settings.toml")).unwrap(), first);
    // What is recorded need not be named again.
    assert_eq!(env.run(&["install", "--sudo", &user, "hook"]).code, Some(0));
}

#[test]
fn a_runner_by_sudo_has_directories_of_its_own() {
    let env = with_runtime();
    fs::write(env.path("file"), "").unwrap();
    fs::create_dir(env.path("runner")).unwrap();
    let name = own_name();
    let other = if name == "root" { "daemon" } else { "root" };
    for (user, dirs, expected) in [
        (name.as_str(), &[][..], "--sudo needs --runner-dir DIR"),
        (&name, &["missing"], "cannot look up missing: No such file"),
        (&name, &["file"], "{ROOT}/file is not a directory"),
        (
            &name,
            &["runner", "/proc/self/root"],
            if name == "root" { "cannot be" } else { "belongs" },
        ),
        (other, &["runner"], "{ROOT}/runner belongs to user "),
        ("no-such-user-anywhere", &["runner"], "unknown user \"no-such-user-anywhere\""),
    ] {
        let mut args = vec!["install", "--sudo", "--runner-user", user];
        dirs.iter().for_each(|dir| args.extend(["--runner-dir", dir]));
        args.push("hook");
        let ran = env.run(&args);
        assert_eq!(ran.code, Some(1), "{user} {dirs:?}");
        assert!(ran.stderr.contains(expected), "{user} {dirs:?}: {}", ran.stderr);
        assert!(!env.path("hook").exists());
    }
    let ran = env.run(&["install", "--runner-dir", "runner", "hook"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn directories_are_not_recorded_in_settings_that_others_can_write() {
    let env = with_runtime();
    fs::create_dir(env.path("runner")).unwrap();
    fs::set_permissions(env.path("settings.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    let user = format!("--runner-user={}", own_name());
    let install = || {
        let ran = env.run(&["install", "--sudo", &user, "--runner-dir", "runner", "hook"]);
        assert_eq!(ran.code, Some(1));
        assert!(ran.stderr.contains("the settings are not trusted"), "{}", ran.stderr);
        ran.stderr
    };
    install();
    fs::set_permissions(env.path("settings.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    let set = std::process::Command::new("setfacl")
        .args(["-m", "u:nobody:rw"])
        .arg(env.path("settings.toml"))
        .status();
    assert!(set.expect("setfacl is needed: install the package acl").success());
    let said = install();
    assert!(said.contains("by the user nobody (uid 65534) through an ACL"), "{said}");
    assert!(said.contains("setfacl -x u:nobody {ROOT}/settings.toml"), "{said}");
}

/// Installs a copy of the program that is in a directory of its own, for a runner that `nobody` runs.
fn install_from(env: &TestEnv, mode: u32, settings: &str) -> Ran {
    fs::set_permissions(env.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(env.path("bin")).unwrap();
    fs::create_dir_all(env.path("runner")).unwrap();
    std::os::unix::fs::chown(env.path("runner"), Some(65534), None).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_container-hook"), env.path("bin/program")).unwrap();
    fs::set_permissions(env.path("bin/program"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(env.path("bin"), fs::Permissions::from_mode(mode)).unwrap();
    let before = fs::read_to_string(env.path("settings.toml")).unwrap();
    env.write("settings.toml", &format!("{before}{settings}"));
    let mut command = std::process::Command::new(env.path("bin/program"));
    command.current_dir(env.path(".")).env_clear().arg("--config").arg(env.path("settings.toml"));
    command.args([
        "install",
        "--sudo",
        "--runner-user",
        "nobody",
        "--runner-dir",
        "runner",
        "hook",
    ]);
    env.run_with_input(command, b"")
}

#[test]
fn a_program_that_the_runner_cannot_execute_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can look with the eyes of another user.
        return;
    }
    for (mode, expected) in [
        (
            0o700,
            "user nobody cannot search {ROOT}/bin, mode 0700 of user 0, on the way to {ROOT}/bin/program",
        ),
        (0o755, ""),
    ] {
        let env = with_runtime();
        let ran = install_from(&env, mode, "");
        assert_eq!(ran.code, Some(i32::from(mode == 0o700)), "{ran:?}");
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        assert_eq!(env.path("hook").exists(), mode == 0o755);
    }
}

#[test]
fn what_makes_the_runner_root_is_warned_of() {
    if !rustix::process::geteuid().is_root() {
        // Only root installs for others.
        return;
    }
    for (settings, is_warned) in [
        ("[policy]\npreset = \"docker\"\n", true),
        ("[policy]\ndevices = [\"/dev/fuse\"]\n", false),
    ] {
        let env = with_runtime();
        let ran = install_from(&env, 0o755, settings);
        let said = "warning: whoever can change a workflow is root of this machine, and so is user \
                    nobody, by [policy] in {ROOT}/settings.toml\n";
        assert_eq!((ran.code, ran.stderr.contains(said)), (Some(0), is_warned), "{ran:?}");
    }
}

#[test]
fn a_program_that_does_not_outlive_a_boot_is_warned_of() {
    if !rustix::process::geteuid().is_root() {
        // As above.
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
    let ran = env.run_with_input(command, b"");
    let said = "warning: {ROOT}/tmp is emptied, at the latest when this machine starts, and ";
    assert_eq!((ran.code, ran.stderr.starts_with(said)), (Some(0), true), "{ran:?}");
}
