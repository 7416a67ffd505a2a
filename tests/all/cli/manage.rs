//! `oci-hooks new`, `install`, `remove`, `disable` and `enable`: their output and the written files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::{Value, json};

use crate::cli::env::{CommandOutput, HookEnv, golden};

/// Runs each command line, and returns the command lines with their output.
fn session(env: &HookEnv, lines: &[&[&str]]) -> String {
    let mut text = String::new();
    for line in lines {
        let CommandOutput { stdout, stderr, code } = env.run(line);
        let code = code.unwrap();
        text += &format!("$ oci-hooks {}\n{stdout}{stderr}", line.join(" "));
        if code != 0 {
            text += &format!("(exit {code})\n");
        }
    }
    text
}

#[test]
fn every_change_reports_its_result() {
    let env = HookEnv::with_hooks();
    env.hook("10-python.json", r#""always": true"#, r#""poststop""#);
    let lines: &[&[&str]] = &[
        &["install", "10-python.json", "--dry-run"],
        &["install", "10-python.json"],
        &["install", "10-python.json"],
        &["install", "config.json"],
        &["disable", "10-python"],
        &["disable", "10-python"],
        &["install", "10-python.json"],
        &["enable", "10-python"],
        &["enable", "10-python"],
        &["remove", "10-python"],
        &["remove", "10-python"],
        &["disable", "30-filter"],
        &["remove", "30-filter"],
        &["enable", "30-filter"],
        &["disable", "nothing"],
        &["disable", "../x"],
    ];
    golden("manage.txt", &session(&env, lines));
    assert_eq!(env.names("etc"), ["20-gpu.json"]);
}

#[test]
fn changes_in_json_list_steps_and_notes() {
    let env = HookEnv::with_hooks();
    let ran = env.run(&["disable", "30-filter", "--format", "json"]);
    golden("disable.json", &ran.stdout);
    let ran = env.run(&["enable", "30-filter", "--format", "json", "--dry-run"]);
    assert_eq!(
        serde_json::from_str::<Value>(&ran.stdout).unwrap(),
        json!({
            "dry_run": true,
            "steps": [{"action": "remove", "path": "{ROOT}/etc/30-filter.json"}],
            "notes": [{"note": "uncovers", "path": "{ROOT}/usr/30-filter.json"}],
        })
    );
    assert_eq!(env.names("etc"), ["20-gpu.json", "30-filter.json"]);
}

#[test]
fn disabled_hook_is_not_injected_until_enabled() {
    let env = HookEnv::with_hooks();
    let before = env.run(&["inject"]).stdout;
    assert!(before.contains("createRuntime"));
    env.run(&["disable", "10-python"]);
    assert!(!env.run(&["inject"]).stdout.contains("createRuntime"));
    env.run(&["enable", "10-python"]);
    assert_eq!(env.run(&["inject"]).stdout, before);
}

#[test]
fn hook_that_never_applies_cannot_be_enabled() {
    let env = HookEnv::with_hooks();
    let always = r#""always": true"#;
    for (file, when, stages) in [
        ("etc/10-python.json", "", r#""poststop""#),
        ("etc/10-python.json", r#""always": false"#, r#""poststop""#),
        ("etc/10-python.json", always, ""),
        ("usr/60-lower.json", "", r#""poststop""#),
    ] {
        env.hook(file, when, stages);
        let ran = env.run(&["enable", &file[4..]]);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.contains(&format!("{file}: never applies")), "{}", ran.stderr);
    }
    env.write("etc/10-python.json", "");
    assert_eq!(env.run(&["enable", "10-python"]).code, Some(2));
    // Its program may be installed later.
    let text = r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/hook"}, "when": {"always": true}, "stages": ["poststop"]}"#;
    env.write("etc/10-python.json", text);
    assert_eq!(env.run(&["enable", "10-python"]).code, Some(0));
}

#[test]
fn invalid_hook_stays_disabled_with_a_reason() {
    let env = HookEnv::new();
    env.write("etc/10-broken.json", r#"{"version": "1.0.0", "hook": {"path": "/bin/true"}}"#);
    let gone = r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/hook"}, "when": {"always": true}, "stages": ["poststop"]}"#;
    env.write("etc/20-gone.json", gone);
    for (name, reason, hint) in [
        ("10-broken", "missing required property: stages", "correct the file: name at least one"),
        ("20-gone", "hook program \"/nonexistent/hook\" does not exist", "or pass --no-path-check"),
    ] {
        assert_eq!(env.run(&["disable", name]).code, Some(0));
        let ran = env.run(&["enable", name]);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.starts_with(&format!("error: {{ROOT}}/etc/{name}.json.disabled:1:")));
        assert!(ran.stderr.contains(&format!("cannot be enabled: {reason}")), "{}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{}", ran.stderr);
    }
    assert_eq!(env.run(&["enable", "20-gone", "--no-path-check"]).code, Some(0));
    assert_eq!(env.read("etc/20-gone.json"), gone);
}

#[test]
fn list_shows_disabled_hooks() {
    let env = HookEnv::with_hooks();
    env.run(&["disable", "10-python"]);
    env.run(&["disable", "20-gpu"]);
    env.hook("etc/50-own.json", r#""always": true"#, r#""poststop""#);
    env.run(&["disable", "50-own"]);
    for other in ["etc/.disabled", "etc/README.disabled", "usr/70-lower.json.disabled"] {
        env.write(other, "");
    }
    let said = env.run(&["list"]).stdout;
    let disabled: Vec<_> = said.lines().filter(|line| line.contains("  disabled  ")).collect();
    let expected = [
        "10-python.json  disabled  {ROOT}/etc/10-python.json",
        "20-gpu.json  disabled  {ROOT}/etc/20-gpu.json",
        "50-own.json  disabled  {ROOT}/etc/50-own.json.disabled",
    ];
    assert_eq!(disabled, expected, "{said}");
}

#[test]
fn new_prints_a_hook_file() {
    let ran = HookEnv::new().run(&[
        "new",
        "--path",
        "/bin/sh",
        "--arg",
        "-c",
        "--arg",
        "true",
        "--env",
        "PATH=/bin",
        "--timeout",
        "10",
        "--stage",
        "createRuntime",
        "--stage",
        "poststop",
        "--when-annotation",
        r"^com\.example\.gpu$=^(all|none)$",
        "--when-command",
        "/python3$",
        "--when-has-bind-mounts",
    ]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("new.json", &ran.stdout);
}

#[test]
fn new_rejects_values_that_a_consumer_rejects() {
    let env = HookEnv::new();
    let new = |args: &[&str]| {
        let mut line = vec!["new", "--path", "/bin/true"];
        line.extend(args);
        env.run(&line)
    };
    for (args, says) in [
        (&["--stage", "nope", "--when-always"][..], "unknown stage \"nope\""),
        (&["--stage", "poststop", "--when-command", "("], "missing closing )"),
        (&["--stage", "poststop"], "--when-always"),
        (&["--when-always"], "--stage"),
        (&["--stage", "poststop", "--when-always", "--timeout", "0"], "0 is not in 1"),
        (&["--stage", "poststop", "--when-always", "--env", "PATH"], "expected NAME=VALUE"),
        (&["--stage", "precreate", "--when-always", "--as", "crio"], "unknown stage"),
        (&["--stage", "poststop", "--when-always", "--install"], "--name"),
        (&["--stage", "poststop", "--when-always", "--when-command", "a"], "cannot be used with"),
        (&["--stage", "poststop", "--when-always", "--name", "x"], "--name has no effect without"),
        (&["--stage", "poststop", "--when-always", "--force"], "--force has no effect without"),
        (
            &[
                "--stage",
                "poststop",
                "--when-annotation",
                "^a$=^1$",
                "--when-annotation",
                "^a$=^2$",
            ],
            "two patterns for the key \"^a$\"",
        ),
    ] {
        let ran = new(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
    }
    let relative = env.run(&["new", "--path", "sh", "--stage", "poststop", "--when-always"]);
    assert!(relative.stderr.contains("expected an absolute path"), "{}", relative.stderr);
}

#[test]
fn new_lints_the_hook_file_that_it_prints() {
    let env = HookEnv::new();
    let line = ["new", "--path", "/bin", "--stage", "poststop", "--when-always"];
    let ran = env.run(&line);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("(OH306)"), "{}", ran.stderr);
    assert_eq!(env.run(&[&line[..], &["--no-lint"]].concat()).code, Some(0));
}

#[test]
fn new_can_install_the_hook() {
    let env = HookEnv::new();
    let ran = env.run(&[
        "new",
        "--path",
        "/nonexistent/x",
        "--stage",
        "poststop",
        "--when-always",
        "--install",
        "--name",
        "note",
        "--no-path-check",
    ]);
    assert_eq!(ran.stdout, "wrote {ROOT}/etc/note.json\n", "{}", ran.stderr);
    let mode = fs::metadata(env.path("etc/note.json")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o644);
}

#[test]
fn install_reads_standard_input_under_a_name() {
    let env = HookEnv::with_hooks();
    let text = env.read("usr/10-python.json");
    let ran = env.run_with_input(&["install", "-", "--name", "a"], &text);
    assert_eq!(ran.stdout, "wrote {ROOT}/etc/a.json\n");
    assert_eq!(env.read("etc/a.json"), text);
    for input in ["-", "/dev/stdin"] {
        let ran = env.run_with_input(&["install", input], "");
        assert!(ran.stderr.contains("--name"), "{input}: {}", ran.stderr);
    }
}

#[test]
fn umask_does_not_make_hooks_unreadable() {
    let env = HookEnv::with_hooks();
    fs::remove_dir_all(env.path("etc")).unwrap();
    // The shell sets the umask and executes the program.
    let program = env!("CARGO_BIN_EXE_oci-hooks");
    let output = std::process::Command::new("/bin/sh")
        .args(["-c", "umask 077; exec \"$0\" \"$@\"", program, "install"])
        .arg(env.path("usr/10-python.json"))
        .args(["--name", "x", "--hooks-dir"])
        .arg(env.path("etc/containers/hooks.d"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for (path, mode) in [
        ("etc", 0o755),
        ("etc/containers", 0o755),
        ("etc/containers/hooks.d", 0o755),
        ("etc/containers/hooks.d/x.json", 0o644),
    ] {
        assert_eq!(fs::metadata(env.path(path)).unwrap().mode() & 0o7777, mode, "{path}");
    }
}

#[test]
fn missing_permission_is_explained() {
    let env = HookEnv::with_hooks();
    let file = env.path("etc/a.json");
    fs::create_dir(&file).unwrap();
    let ran = env.run(&["remove", "a", "--error-format", "json"]);
    assert_eq!(ran.code, Some(2));

    // Root could write anywhere, so as root the program runs as an unprivileged user.
    fs::set_permissions(env.path("etc"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(env.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = env.command(&["disable", "30-filter"]);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        use std::os::unix::process::CommandExt;
        let program = env.path("oci-hooks");
        // Copied by a child process: a file that is open for writing, even in a forked child of another
        // thread, cannot be executed.
        let mut copy = std::process::Command::new("cp");
        assert!(
            copy.arg(env!("CARGO_BIN_EXE_oci-hooks")).arg(&program).status().unwrap().success()
        );
        let mut as_nobody = std::process::Command::new(program);
        as_nobody.args(command.get_args()).current_dir("/").uid(65534).gid(65534);
        command = as_nobody;
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("Permission denied") && stderr.contains("run as root"), "{stderr}");
    assert_eq!(env.names("etc"), ["20-gpu.json", "a.json"]);
}

#[test]
fn names_may_be_non_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let env = HookEnv::new();
    let name = OsStr::from_bytes(b"\xff.json");
    env.hook("a.json", r#""always": true"#, r#""poststop""#);
    fs::rename(env.path("a.json"), env.path("").join(name)).unwrap();
    let run = |args: &[&str]| {
        let output = env.command(args).arg(name).args(["--format", "json"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&["install"]);
    assert!(env.path("etc").join(name).exists());
    run(&["validate"]);
    run(&["migrate"]);
    run(&["disable"]);
    assert!(!env.path("etc").join(name).exists());
}

#[test]
fn lint_findings_reject_or_warn_before_installation() {
    let env = HookEnv::new();
    let hook = |path: &str, when: &str| {
        format!(
            "{{\"version\": \"1.0.0\", \"hook\": {{\"path\": \"{path}\"}}, \"when\": {{{when}}}, \"stages\": [\"poststop\"]}}"
        )
    };
    env.write("directory.json", &hook("/bin", "\"always\": true"));
    let ran = env.run(&["install", "directory.json"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("(OH306)"), "{}", ran.stderr);
    assert_eq!(env.names("etc"), Vec::<String>::new());
    assert_eq!(env.run(&["install", "--no-lint", "directory.json"]).code, Some(0));

    env.write("never.json", &hook("/bin/true", "\"always\": false"));
    let ran = env.run(&["install", "never.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("warning:") && ran.stderr.contains("(OH202)"), "{}", ran.stderr);
}

#[test]
fn lint_ignores_disabled_hooks() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""always": true"#, r#""poststop""#);
    env.run(&["disable", "a"]);
    let ran = env.run(&["lint"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("OH409"), "{}", ran.stdout);
}

#[test]
fn hook_that_other_engines_reject_is_not_installed_beside_theirs() {
    let env = HookEnv::new();
    env.containers_conf("containers.conf", &["etc"]);
    env.hook("10-devices.json", r#""always": true"#, r#""precreate""#);
    let install = |words: &[&str]| {
        let words = [&["install", "10-devices.json"], words].concat();
        env.run_configured(&[("CONTAINERS_CONF", "containers.conf")], &words)
    };
    let ran = install(&[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("`precreate` is rejected by buildah"), "{}", ran.stderr);
    assert!(ran.stderr.contains("pass --no-lint"), "{}", ran.stderr);
    assert!(!env.path("etc/10-devices.json").exists());
    assert_eq!(install(&["--no-lint"]).code, Some(0));
    // A directory of its own.
    assert_eq!(env.run(&["install", "10-devices.json", "--name", "20"]).code, Some(0));
}

#[test]
fn hook_file_is_run_as_the_engine_does() {
    let env = HookEnv::new();
    let hook = json!({
        "version": "1.0.0",
        "hook": {
            "path": "/bin/sh", "args": ["name", "-c", "cat; echo $0 $A; exec sleep 60"],
            "env": ["A=b"], "timeout": 1,
        },
        "when": {"always": true},
        "stages": ["poststop"],
    });
    env.write("etc/10-run.json", &hook.to_string());
    let ran = env.run_with_input(&["run-hook", "--hook", "10-run", "--capture", "records"], "{}");
    assert_eq!(ran.code, Some(128 + 9), "killed at its timeout: {}", ran.stderr);
    assert_eq!(ran.stdout, "{}name b\n");
    assert!(ran.stderr.contains("/bin/sh: killed at its timeout of 1 s"), "{}", ran.stderr);
    let record = &env.names("records")[0];
    let record: Value = serde_json::from_str(&env.read(&format!("records/{record}"))).unwrap();
    assert_eq!((&record["hook"], &record["stage"]), (&json!("10-run.json"), &json!("poststop")));
    let ran = env.run_with_input(&["run-hook", "--hook", "typo"], "{}");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("typo.json"), "{}", ran.stderr);
}
