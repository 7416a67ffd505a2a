//! `oci-hooks-runtime` by itself, with a runtime that records how it was called.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;
use crate::support::program;

const CONFIG: &str = r#"{"ociVersion": "1.0.2", "process": {"args": ["/bin/sh"]}, "x": 1e400}"#;

/// A bundle, a hook directory, and a runtime that exits with 7.
struct Setup {
    hooks: HooksDir,
    place: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let setup = Setup { hooks: HooksDir::new(), place: program::temporary_directory() };
        setup.write("config.json", CONFIG);
        let script = "#!/bin/sh\nfor arg; do printf '%s\\0' \"$arg\"; done >\"${0%/*}/argv\"\n\
            { cat <&3 || true; } >\"${0%/*}/fd3\" 2>/dev/null\nexit 7\n";
        setup.write("fake", script);
        fs::set_permissions(setup.path("fake"), fs::Permissions::from_mode(0o755)).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn config(&self) -> String {
        fs::read_to_string(self.path("config.json")).unwrap()
    }

    fn command(&self, args: &[&OsStr]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
        command
            .env_clear()
            .env("OCI_HOOKS_DIRS", self.hooks.path())
            .env("OCI_HOOKS_RUNTIME", self.path("fake"))
            .current_dir(self.place.path())
            .args(args);
        command
    }

    fn run(&self, line: &str) -> Output {
        let args: Vec<_> = line.split(' ').map(OsStr::new).collect();
        self.command(&args).output().unwrap()
    }

    fn was_called(&self) -> bool {
        self.path("argv").exists()
    }

    /// Adds a hook that matches, which gives the path to its file.
    fn matching(&self) -> PathBuf {
        self.hooks.hook("a.json", "true", json!({"commands": ["/sh$"]}), &["createRuntime"]);
        self.hooks.path().join("a.json")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn arguments_exit_code_and_descriptors_are_passed_on() {
    let setup = Setup::new();
    setup.matching();
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
fn only_commands_that_make_containers_change_the_configuration() {
    let setup = Setup::new();
    setup.matching();
    for line in
        ["state c", "delete --force c", "--version", "features", "exec -p x c", "kill c KILL"]
    {
        assert_eq!(setup.run(line).status.code(), Some(7), "{line}");
        assert_eq!(setup.config(), CONFIG, "{line}");
    }
}

#[test]
fn what_does_not_match_leaves_the_file_alone_and_what_does_keeps_its_mode() {
    let setup = Setup::new();
    setup.hooks.hook("a.json", "true", json!({"commands": ["/bash$"]}), &["poststop"]);
    fs::set_permissions(setup.path("config.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = fs::metadata(setup.path("config.json")).unwrap();
    setup.run("create c");
    assert_eq!(fs::metadata(setup.path("config.json")).unwrap().ino(), before.ino());
    setup.matching();
    setup.run("create c");
    let after = fs::metadata(setup.path("config.json")).unwrap();
    assert_eq!(after.mode() & 0o777, 0o600);
    assert!(setup.config().contains("createRuntime"));
    let once = setup.config();
    setup.run("create c");
    assert_eq!(setup.config(), once, "hooks that are there are not added again");
}

#[test]
fn a_bad_hook_file_fails_the_create_with_one_line_in_the_log() {
    let setup = Setup::new();
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
    assert!(text(&ran.stderr).contains("level=error msg=\"oci-hooks: "), "{}", text(&ran.stderr));
    setup.write("settings.toml", "skip-bad-files = true\n");
    let mut command = setup.command(&["create", "c"].map(OsStr::new));
    let ran =
        command.env("OCI_HOOKS_RUNTIME_CONFIG", setup.path("settings.toml")).output().unwrap();
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran.stderr));
}

#[test]
fn row_26_a_hook_that_others_can_change_is_refused_unless_told_otherwise() {
    let setup = Setup::new();
    let file = setup.matching();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let ran = setup.run("create c");
    assert_eq!(ran.status.code(), Some(1));
    assert!(text(&ran.stderr).contains("can be changed by everyone"), "{}", text(&ran.stderr));
    assert_eq!(setup.config(), CONFIG);
    setup.write("settings.toml", "strict = false\n");
    let mut command = setup.command(&["create", "c"].map(OsStr::new));
    let ran =
        command.env("OCI_HOOKS_RUNTIME_CONFIG", setup.path("settings.toml")).output().unwrap();
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran.stderr));
}

#[test]
fn row_30_a_configuration_behind_a_link_is_refused() {
    let setup = Setup::new();
    setup.matching();
    fs::rename(setup.path("config.json"), setup.path("elsewhere.json")).unwrap();
    symlink("elsewhere.json", setup.path("config.json")).unwrap();
    assert_eq!(setup.run("create c").status.code(), Some(1));
    assert_eq!(fs::read_to_string(setup.path("elsewhere.json")).unwrap(), CONFIG);
    assert!(!setup.was_called());
}

#[test]
fn precreate_hooks_rewrite_the_configuration() {
    let setup = Setup::new();
    let script = "sed s,/bin/sh,/bin/ash,";
    setup.hooks.hook("a.json", script, json!({"always": true}), &["precreate"]);
    assert_eq!(setup.run("create c").status.code(), Some(7));
    assert!(setup.config().contains("/bin/ash"), "{}", setup.config());
}

#[test]
fn installed_as_runc_it_finds_the_other_one() {
    let setup = Setup::new();
    let dirs = ["first", "second"].map(|name| setup.path(name));
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_oci-hooks-runtime"), dirs[0].join("runc")).unwrap();
    fs::copy(setup.path("fake"), dirs[1].join("runc")).unwrap();
    let status = Command::new(dirs[0].join("runc"))
        .env_clear()
        .env("PATH", std::env::join_paths(dirs.iter().map(Path::new)).unwrap())
        .env("OCI_HOOKS_DIRS", setup.hooks.path())
        .arg("state")
        .status();
    // The other one has written its arguments beside itself.
    assert!(dirs[1].join("argv").exists(), "{status:?}");
}
