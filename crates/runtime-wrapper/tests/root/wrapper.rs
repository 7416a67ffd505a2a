//! `oci-hooks-runtime` with a fake runtime that records its arguments.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::setup::{CONFIG, WrapperSetup, text};

#[test]
fn arguments_exit_code_and_descriptors_are_passed_on() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    let odd = OsString::from_vec(b"name-\xff".to_vec());
    let args = ["--root", "/r", "create", "--bundle", ".", "--pid-file", ""].map(OsStr::new);
    let args: Vec<&OsStr> = args.into_iter().chain([odd.as_os_str()]).collect();
    setup.write("third", "passed");
    let mut shell = Command::new("/bin/sh");
    let wrapper = setup.command(&args);
    shell
        .args(["-c", "exec \"$@\" 3<third", "sh"])
        .arg(wrapper.get_program())
        .args(wrapper.get_args())
        .env("OCI_HOOKS_DIRS", setup.hooks.path())
        .env("OCI_HOOKS_RUNTIME", setup.path("fake"))
        .current_dir(setup.place.path());
    assert_eq!(shell.status().unwrap().code(), Some(7));
    let expected: Vec<u8> = args.iter().flat_map(|arg| [arg.as_bytes(), b"\0"].concat()).collect();
    assert_eq!(fs::read(setup.path("argv")).unwrap(), expected);
    assert_eq!(fs::read(setup.path("fd3")).unwrap(), b"passed");
    assert!(setup.config().starts_with(CONFIG.trim_end_matches('}')), "{}", setup.config());
    assert!(setup.config().contains("\"createRuntime\""));
}

#[test]
fn only_container_creation_changes_the_configuration() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    for line in
        ["state c", "delete --force c", "--version", "features", "exec -p x c", "kill c KILL"]
    {
        assert_eq!(setup.run(line).status.code(), Some(7), "{line}");
        assert_eq!(setup.config(), CONFIG, "{line}");
    }
}

#[test]
fn configuration_changes_only_on_a_match_and_keeps_its_mode() {
    let setup = WrapperSetup::new();
    setup.hooks.hook("a.json", "true", json!({"commands": ["/bash$"]}), &["poststop"]);
    fs::set_permissions(setup.path("config.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = fs::metadata(setup.path("config.json")).unwrap();
    setup.run("create c");
    assert_eq!(fs::metadata(setup.path("config.json")).unwrap().ino(), before.ino());
    setup.add_matching_hook();
    setup.run("create c");
    let after = fs::metadata(setup.path("config.json")).unwrap();
    assert_eq!(after.mode() & 0o777, 0o600);
    assert!(setup.config().contains("createRuntime"));
    let once = setup.config();
    setup.run("create c");
    assert_eq!(setup.config(), once, "hooks that are there are not added again");
}

#[test]
fn bad_hook_file_fails_the_create_with_one_log_line() {
    let setup = WrapperSetup::new();
    fs::write(setup.hooks.path().join("bad.json"), "{\"version\": \"1.0.0\",}").unwrap();
    let ran = setup.run("--log log.json --log-format json create c");
    assert_eq!(ran.status.code(), Some(1));
    assert!(!setup.was_called());
    let line: Value = serde_json::from_slice(&fs::read(setup.path("log.json")).unwrap()).unwrap();
    assert_eq!(line["level"], "error");
    let message = line["msg"].as_str().unwrap();
    assert!(message.contains("bad.json:1:20: trailing comma"), "{message}");
    assert!(line["time"].is_string());

    let ran = setup.run("create c");
    assert!(text(&ran.stderr).starts_with("error: oci-hooks: "), "{}", text(&ran.stderr));
}

#[test]
fn hook_writable_by_others_is_rejected_unless_allowed() {
    let setup = WrapperSetup::new();
    let file = setup.add_matching_hook();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let ran = setup.run("create c");
    assert_eq!(ran.status.code(), Some(1));
    assert!(text(&ran.stderr).contains("is writable by everyone"), "{}", text(&ran.stderr));
    assert_eq!(setup.config(), CONFIG);
}

#[test]
fn configuration_behind_a_link_is_rejected() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    fs::rename(setup.path("config.json"), setup.path("elsewhere.json")).unwrap();
    symlink("elsewhere.json", setup.path("config.json")).unwrap();
    assert_eq!(setup.run("create c").status.code(), Some(1));
    assert_eq!(fs::read_to_string(setup.path("elsewhere.json")).unwrap(), CONFIG);
    assert!(!setup.was_called());
}

#[test]
fn precreate_hooks_rewrite_the_configuration() {
    let setup = WrapperSetup::new();
    let script = "sed s,/bin/sh,/bin/ash,";
    setup.hooks.hook("a.json", script, json!({"always": true}), &["precreate"]);
    assert_eq!(setup.run("create c").status.code(), Some(7));
    assert!(setup.config().contains("/bin/ash"), "{}", setup.config());
}

#[test]
fn wrapper_installed_as_runc_finds_the_real_runc() {
    let setup = WrapperSetup::new();
    let dirs = ["first", "second"].map(|name| setup.path(name));
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
    }
    program::copy_program(env!("CARGO_BIN_EXE_oci-hooks-runtime").as_ref(), &dirs[0].join("runc"));
    program::copy_program(&setup.path("fake"), &dirs[1].join("runc"));
    let status = Command::new(dirs[0].join("runc"))
        .env_clear()
        .env("PATH", std::env::join_paths(dirs.iter().map(Path::new)).unwrap())
        .env("OCI_HOOKS_DIRS", setup.hooks.path())
        .arg("state")
        .status();
    // The second runtime has written its arguments to its own directory.
    assert!(dirs[1].join("argv").exists(), "{status:?}");
}

/// Only links are detected: a copy of the wrapper is a different file.
#[test]
fn wrapper_linked_as_runc_does_not_find_itself() {
    let setup = WrapperSetup::new();
    symlink(env!("CARGO_BIN_EXE_oci-hooks-runtime"), setup.path("runc")).unwrap();
    let ran = Command::new(setup.path("runc"))
        .env_clear()
        .env("PATH", setup.place.path())
        .arg("state")
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(text(&ran.stderr).contains("cannot find an OCI runtime"), "{}", text(&ran.stderr));
}

#[test]
fn wrapper_replaces_its_process_with_the_runtime() {
    let setup = WrapperSetup::new();
    setup.fake("echo $$ >pid; cat >stdin; echo out; echo err >&2; kill -TERM $$");
    setup.write("input", "from the engine");
    let mut command = setup.command(&["kill", "c"].map(OsStr::new));
    let input = fs::File::open(setup.path("input")).unwrap();
    let child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.signal(), Some(15));
    assert_eq!((text(&ended.stdout).as_str(), text(&ended.stderr).as_str()), ("out\n", "err\n"));
    assert_eq!(fs::read_to_string(setup.path("pid")).unwrap().trim(), pid.to_string());
    assert_eq!(fs::read_to_string(setup.path("stdin")).unwrap(), "from the engine");
}

#[test]
fn runtime_inherits_the_signal_settings_of_its_parent() {
    let setup = WrapperSetup::new();
    // Ignored and blocked signals: Rust ignores SIGPIPE at program start.
    setup.fake("grep -E '^Sig(Blk|Ign)' /proc/self/status >signals");
    let mask = || fs::read_to_string(setup.path("signals")).unwrap();
    for ignored in ["", "trap '' HUP USR1; "] {
        let run = |program: &Path| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &format!("{ignored}exec \"$0\" state")]).arg(program);
            program::run(shell.env("OCI_HOOKS_RUNTIME", setup.path("fake"))).success();
            mask()
        };
        let alone = run(&setup.path("fake"));
        assert_eq!(run(Path::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"))), alone);
    }
}

/// Podman, dockerd and containerd read standard output.
#[test]
fn version_and_help_add_a_line_on_standard_error() {
    let setup = WrapperSetup::new();
    setup.fake("echo \"runc version 9 $*\"; echo own >&2; exit 7");
    let ours = concat!("oci-hooks-runtime ", env!("CARGO_PKG_VERSION"));
    for (line, is_alone) in [
        ("--version", true),
        ("--help", true),
        ("--root /x --version", false),
        ("features", false),
        ("--version --version", false),
    ] {
        let ran = setup.run(line);
        assert_eq!(ran.status.code(), Some(7), "{line}");
        assert_eq!(text(&ran.stdout), format!("runc version 9 {line}\n"));
        let said = text(&ran.stderr);
        assert!(said.starts_with("own\n"), "{said}");
        assert_eq!(said.contains(ours), is_alone, "{line}: {said}");
    }
    let mut without = setup.command(&["--version".as_ref()]);
    let ran = without.env("OCI_HOOKS_RUNTIME", "/nonexistent/runc").output().unwrap();
    assert_eq!((ran.status.code(), text(&ran.stdout).as_str()), (Some(1), ""));
    let said = text(&ran.stderr);
    assert!(said.starts_with(ours) && said.contains("\nerror: oci-hooks: "), "{said}");
}

#[test]
fn real_runtimes_give_the_same_output_through_the_wrapper() {
    program::require_root();
    for runtime in TestRuntime::ALL {
        let real = runtime.command().get_program().to_owned();
        // The machine's own containers come and go between two calls of `list`.
        let root = program::temporary_directory();
        for line in ["--version", "features", "state none", "list", "no-such-command", "--no-such"]
        {
            let run = |command: &mut Command| {
                command.arg("--root").arg(root.path()).args(line.split(' '));
                let finished = program::run(command);
                // runc begins a line with the time.
                let stderr: Vec<_> =
                    finished.stderr.lines().map(strip_time).map(str::to_owned).collect();
                (finished.status.code(), finished.stdout, stderr)
            };
            let mut wrapper = Command::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
            let ours = run(wrapper.env("OCI_HOOKS_RUNTIME", &real));
            assert_eq!(ours, run(&mut Command::new(&real)), "{runtime} {line}");
        }
    }
}

fn strip_time(line: &str) -> &str {
    match line.split_once("\" ") {
        Some((time, rest)) if time.starts_with("time=") => rest,
        _ => line,
    }
}

#[test]
fn errors_are_written_where_the_engine_reads_them() {
    let setup = WrapperSetup::new();
    fs::write(setup.hooks.path().join("bad.json"), "[]").unwrap();
    for (format, log) in [("text", "log.text"), ("json", "log.json")] {
        let ran = setup.run(&format!("--log {log} --log-format {format} create c"));
        assert_eq!(ran.status.code(), Some(1));
        let said = text(&ran.stderr);
        assert!(said.starts_with("error: oci-hooks: ") && said.contains("bad.json"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let logged = fs::read_to_string(setup.path(log)).unwrap();
        assert_eq!(logged.lines().count(), 1, "{logged}");
        let message = said.trim_start_matches("error: ").trim_end();
        if format == "json" {
            let line: Value = serde_json::from_str(&logged).unwrap();
            assert_eq!((&line["level"], &line["msg"]), (&json!("error"), &json!(message)));
        } else {
            assert!(logged.contains(&format!(" level=error msg={message:?}")), "{logged}");
        }
    }
    let ran = setup.run("--log no/such/log create c");
    assert!(text(&ran.stderr).contains("bad.json"), "{}", text(&ran.stderr));
    assert!(!setup.was_called());
}

#[test]
fn unusable_configuration_fails_the_create() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    for (config, fault) in [
        ("{", "config.json"),
        ("[]", "config.json"),
        (r#"{"process": {"args": []}}"#, "a.json"),
        (r#"{"hooks": [], "process": {"args": ["sh", "/bin/sh"]}}"#, "config.json"),
    ] {
        setup.write("config.json", config);
        let ran = setup.run("create c");
        let said = text(&ran.stderr);
        if config.contains("hooks") {
            // The hook does not match the command `sh`.
            assert_eq!(ran.status.code(), Some(7), "{said}");
            continue;
        }
        assert_eq!(ran.status.code(), Some(1), "{config}: {said}");
        assert!(said.contains(fault), "{config}: {said}");
        assert_eq!(setup.config(), config);
    }
    fs::remove_file(setup.path("config.json")).unwrap();
    assert!(text(&setup.run("create c").stderr).contains("config.json"));
}

#[test]
fn mode_and_owner_of_the_configuration_are_kept() {
    program::require_root();
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    let path = setup.path("config.json");
    chown(&path, Some(1234), Some(5678)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(setup.run("create c").status.code(), Some(7));
    let after = fs::metadata(&path).unwrap();
    assert!(setup.config().contains("createRuntime"));
    assert_eq!((after.uid(), after.gid(), after.mode() & 0o7777), (1234, 5678, 0o640));
    let left: Vec<_> = fs::read_dir(setup.place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.as_bytes().starts_with(b"."))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
