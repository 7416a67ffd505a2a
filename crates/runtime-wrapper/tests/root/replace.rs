//! Replacing a configuration while an attacker tampers with its path.
//!
//! A `precreate` hook plays the attacker: it runs between reading and writing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use oci_hooks_testsupport::program;
use serde_json::json;

use crate::hooks_dir::HooksDir;

const CONFIG: &str = r#"{"ociVersion": "1.0.2", "process": {"args": ["/bin/sh"]}}"#;
const OTHER: &str = r#"{"ociVersion": "1.0.2"}"#;

/// Two bundles, `ours` and `theirs`, and a link `bundle` to the first.
struct SwappedBundles(tempfile::TempDir);

impl SwappedBundles {
    fn new() -> Self {
        let place = SwappedBundles(program::temporary_directory());
        for (name, config) in [("ours", CONFIG), ("theirs", OTHER)] {
            fs::create_dir(place.path(name)).unwrap();
            fs::write(place.path(name).join("config.json"), config).unwrap();
        }
        symlink("ours", place.path("bundle")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Returns a hook directory with a matching hook, and a `precreate` hook that runs a script in the directory of
    /// the bundles.
    fn hooks(&self, script: &str) -> HooksDir {
        let hooks = HooksDir::new();
        hooks.hook("a.json", "true", json!({"always": true}), &["poststart"]);
        let script = format!("cd {} && {script} >&2 && cat", self.0.path().display());
        hooks.hook("swap.json", &script, json!({"always": true}), &["precreate"]);
        hooks
    }

    fn wrapper(&self, hooks: &HooksDir) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
        command
            .env_clear()
            .env("OCI_HOOKS_DIRS", hooks.path())
            .env("OCI_HOOKS_RUNTIME", "/bin/true")
            .args(["create", "--bundle"])
            .arg(self.path("bundle"))
            .arg("c");
        command
    }

    fn inject(&self, hooks: &HooksDir) -> Command {
        let mut command = hooks.inject(&["--run-precreate", "--in-place"]);
        command.arg(self.path("bundle"));
        command
    }
}

#[test]
fn swapped_link_to_the_bundle_does_not_redirect_the_write() {
    for wrapped in [true, false] {
        let place = SwappedBundles::new();
        let hooks = place.hooks("ln -sfn theirs bundle");
        let mut command = if wrapped { place.wrapper(&hooks) } else { place.inject(&hooks) };
        program::run(&mut command).success();
        assert_eq!(place.read("bundle/config.json"), OTHER);
        assert!(place.read("ours/config.json").contains("poststart"));
    }
}

#[test]
fn configuration_replaced_by_a_link_is_not_written_through() {
    for wrapped in [true, false] {
        let place = SwappedBundles::new();
        let hooks = place.hooks("ln -sf ../theirs/config.json ours/config.json");
        let mut command = if wrapped { place.wrapper(&hooks) } else { place.inject(&hooks) };
        let error = program::run(&mut command).failure();
        assert!(error.contains("was changed by another process since it was read"), "{error}");
        assert_eq!(place.read("theirs/config.json"), OTHER);
    }
}

#[test]
fn inject_follows_a_link_once_and_the_wrapper_never() {
    let place = SwappedBundles::new();
    fs::rename(place.path("ours/config.json"), place.path("real.json")).unwrap();
    symlink("../real.json", place.path("ours/config.json")).unwrap();
    let hooks = place.hooks("ln -sf ../theirs/config.json ours/config.json");
    let error = program::run(&mut place.wrapper(&hooks)).failure();
    assert!(error.contains("ours") || error.contains("bundle/config.json"), "{error}");
    assert!(error.contains("symbolic link"), "{error}");
    assert_eq!(place.read("real.json"), CONFIG);

    program::run(&mut place.inject(&hooks)).success();
    assert!(place.read("real.json").contains("poststart"));
    assert_eq!(place.read("theirs/config.json"), OTHER);
}

#[test]
fn concurrent_changes_of_the_configuration_are_kept() {
    for wrapped in [true, false] {
        let place = SwappedBundles::new();
        let hooks = place.hooks("cp theirs/config.json ours/config.json");
        let mut command = if wrapped { place.wrapper(&hooks) } else { place.inject(&hooks) };
        program::run(&mut command).failure();
        assert_eq!(place.read("ours/config.json"), OTHER);
    }
}

#[test]
fn wrapper_killed_before_writing_leaves_nothing() {
    let place = SwappedBundles::new();
    // The hook runs in its own process group; its parent is the wrapper.
    let hooks = place.hooks("kill -KILL $PPID");
    let finished = program::run(&mut place.wrapper(&hooks));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&finished.status), Some(9));
    assert_eq!(place.read("ours/config.json"), CONFIG);
    let names: Vec<_> =
        fs::read_dir(place.path("ours")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["config.json"]);
}

#[test]
fn wrapper_killed_while_writing_leaves_the_old_configuration() {
    let place = SwappedBundles::new();
    let hooks = place.hooks("true");
    let padding = "x".repeat(1 << 20);
    let config = format!(r#"{{"process": {{"args": ["/bin/sh"]}}, "padding": "{padding}"}}"#);
    fs::write(place.path("ours/config.json"), &config).unwrap();
    // The kernel kills a process that exceeds this file size: here in the middle of the new configuration.
    let limited = |limit: &str| {
        let command = place.wrapper(&hooks);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("ulimit -f {limit} && exec \"$@\""), "sh"]);
        shell.arg(command.get_program()).args(command.get_args()).env_clear();
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        program::run(&mut shell)
    };
    let finished = limited("1000");
    assert!(!finished.status.success());
    assert_eq!(place.read("ours/config.json"), config);
    limited("unlimited").success();
    assert!(place.read("ours/config.json").contains("poststart"));
}

#[test]
fn wrapper_killed_at_any_moment_leaves_old_or_new_configuration() {
    let place = SwappedBundles::new();
    let hooks = HooksDir::new();
    hooks.hook("a.json", "true", json!({"always": true}), &["poststart"]);
    let new = program::run(hooks.inject(&["--strict"]).arg(place.path("ours"))).success();
    let started = Instant::now();
    program::run(&mut place.wrapper(&hooks)).success();
    assert_eq!(place.read("ours/config.json"), new, "one that is not killed");
    let whole = started.elapsed();
    for round in 0..200 {
        fs::write(place.path("ours/config.json"), CONFIG).unwrap();
        let mut wrapper = place.wrapper(&hooks).spawn().unwrap();
        let moment = Instant::now();
        while moment.elapsed() < whole * round / 150 {
            std::hint::spin_loop();
        }
        // Fails if the wrapper has already ended.
        let _ = wrapper.kill();
        wrapper.wait().unwrap();
        let config = place.read("ours/config.json");
        assert!(config == CONFIG || config == new, "{config}");
    }
}
