//! Directory entries that are not regular files or cannot be read.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{self, EntryState, HookError, LoadOptions, LoadedHooks};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::robustness::limited::{LimitedDir, LimitedRun};

const HOOK: &str = r#"{"version":"1.0.0","hook":{"path":"/bin/true"},"when":{"always":true},"stages":["poststop"]}"#;

fn load(place: &LimitedDir) -> LoadedHooks {
    let mut options = LoadOptions::for_consumer(&PODMAN);
    options.dirs = vec![place.path("hooks.d")];
    hooks::load(&options)
}

/// Returns a directory with a good hook and another entry.
fn with(make: impl FnOnce(&LimitedDir)) -> LimitedDir {
    let place = LimitedDir::new();
    place.write("hooks.d/good.json", HOOK);
    make(&place);
    place
}

/// Checks that the other entry causes one problem of this class, and that the good hook is loaded.
#[track_caller]
fn assert_problem(place: &LimitedDir, class: &str, message: &str) {
    let loaded = load(place);
    assert_eq!(loaded.hooks.len(), 1, "{:?}", loaded.problems);
    let [problem] = loaded.problems.as_slice() else { panic!("{:?}", loaded.problems) };
    assert_eq!(problem.source.class(), class);
    let mut chain = problem.source.to_string();
    let mut cause = std::error::Error::source(&problem.source);
    while let Some(error) = cause {
        chain = format!("{chain}: {error}");
        cause = error.source();
    }
    assert!(chain.contains(message), "{chain}");
    place.run_all(128);
}

#[test]
fn fifo_is_not_waited_for() {
    let place = with(|place| {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, place.path("hooks.d/a.json"), FileType::Fifo, mode, 0).unwrap();
    });
    let loaded = load(&place);
    assert_eq!(loaded.hooks.len(), 1);
    assert_eq!(loaded.problems[0].source.class(), "io");
    place.run_all(128);
    let file = "hooks.d/a.json";
    for args in [
        &["validate", file][..],
        &["migrate", file],
        &["install", file],
        &["explain", file],
        &["inject", file],
        &["inject", "config.json", "--annotations-file", file],
        &["lint", file],
    ] {
        let LimitedRun { stdout, stderr, .. } = place.run(128, args);
        let said = format!("{}{stderr}", String::from_utf8(stdout).unwrap());
        assert!(said.contains("hooks.d/a.json is a FIFO, not a file"), "{args:?}: {said}");
    }
}

#[test]
fn a_socket_is_an_error() {
    let mut listener = None;
    let place =
        with(|place| listener = Some(UnixListener::bind(place.path("hooks.d/a.json")).unwrap()));
    assert_problem(&place, "io", "is a socket, not a file");
}

#[test]
fn an_endless_device_is_an_error() {
    let place = with(|place| symlink("/dev/zero", place.path("hooks.d/a.json")).unwrap());
    assert_problem(&place, "io", "is a character device, not a file");
}

#[test]
fn dev_null_is_an_empty_file() {
    let place = with(|place| symlink("/dev/null", place.path("hooks.d/a.json")).unwrap());
    assert_problem(&place, "json-syntax", "unexpected end");
}

#[test]
fn a_directory_is_an_error() {
    let place = with(|place| fs::create_dir(place.path("hooks.d/a.json")).unwrap());
    assert_problem(&place, "io", "Is a directory");
}

#[test]
fn an_endless_symbolic_link_is_an_error() {
    let place = with(|place| symlink("a.json", place.path("hooks.d/a.json")).unwrap());
    assert_problem(&place, "io", "Too many levels of symbolic links");
}

#[test]
fn dangling_symbolic_link_is_ignored() {
    let place = with(|place| symlink("nowhere", place.path("hooks.d/a.json")).unwrap());
    let loaded = load(&place);
    assert_eq!(loaded.hooks.len(), 1);
    assert_eq!(loaded.entries[0].state, EntryState::Vanished);
    assert!(loaded.into_strict().is_ok());
    place.run_all(128);
}

#[test]
fn names_may_be_non_utf_8() {
    let place = with(|place| {
        let dir = place.path("hooks.d");
        fs::write(dir.join(OsStr::from_bytes(b"\xff\xfe.json")), HOOK).unwrap();
        fs::write(dir.join(OsStr::from_bytes(b"\xffbroken.json")), "{").unwrap();
        fs::write(dir.join("a\nb\x1b[31m.json"), HOOK).unwrap();
    });
    let loaded = load(&place);
    assert_eq!((loaded.hooks.len(), loaded.problems.len()), (3, 1));
    place.run_all(128);
    let ran = place.run(128, &["inject", "config.json", "--lenient"]);
    assert_eq!(String::from_utf8(ran.stdout).unwrap().matches("/bin/true").count(), 3);
}

#[test]
fn entries_of_proc_are_read_with_a_limit() {
    let place = with(|place| symlink("/proc/self/status", place.path("hooks.d/a.json")).unwrap());
    assert_problem(&place, "json-syntax", "expected a value");
}

#[test]
fn a_file_without_read_permission_is_an_error() {
    let place = with(|place| {
        place.write("hooks.d/a.json", HOOK);
        let mode = |name, mode| {
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("hooks.d/a.json", 0o000);
        mode("", 0o755);
    });
    // Root can read the file, so the program runs as another user, from a copy that the user can execute.
    let program = place.path("oci-hooks");
    // Copied by a child process: a file that is open for writing, even in a forked child of another thread,
    // cannot be executed.
    let mut copy = Command::new("cp");
    assert!(copy.arg(env!("CARGO_BIN_EXE_oci-hooks")).arg(&program).status().unwrap().success());
    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command
        .arg("inject")
        .arg(place.path("config.json"))
        .arg("--hooks-dir")
        .arg(place.path("hooks.d"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("a.json: cannot open: Permission denied"), "{stderr}");
}

#[test]
fn file_in_place_of_the_directory_is_fatal() {
    let place = LimitedDir::new();
    fs::remove_dir(place.path("hooks.d")).unwrap();
    place.write("hooks.d", HOOK);
    let loaded = load(&place);
    assert!(matches!(loaded.problems[0].source, HookError::List(_)));
    assert!(loaded.into_strict().is_err());
    place.run_all(128);
}
