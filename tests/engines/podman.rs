//! podman reads the same directories and comes to the same result; and it runs the wrapper.

use std::path::Path;

use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;
use crate::support::podman::Podman;
use crate::support::program;

/// Hooks of both schemas for each kind of condition.
fn various_hooks() -> HooksDir {
    let hooks = HooksDir::new();
    let script = "cat >/dev/null";
    let stage = &["poststart"][..];
    hooks.hook("10-always.json", script, json!({"always": true}), &["createRuntime", "poststart"]);
    hooks.hook("20-Sleep.json", script, json!({"commands": ["/sleep$"]}), stage);
    hooks.hook(
        "20-echo.json",
        script,
        json!({"commands": ["^/bin/e", "nothing"]}),
        &["createContainer"],
    );
    hooks.hook("30-mounts.json", script, json!({"hasBindMounts": true}), &["prestart"]);
    hooks.hook("31-no-mounts.json", script, json!({"hasBindMounts": false}), stage);
    hooks.hook(
        "40-both.json",
        script,
        json!({"annotations": {"^com\\.example\\.a$": "^[0-9]+$"}, "always": true}),
        stage,
    );
    hooks.hook("41-value.json", script, json!({"annotations": {"example": "^x$"}}), stage);
    hooks.hook("50-never.json", script, json!({}), stage);
    hooks.file("60-old.json", &json!({"hook": "/bin/true", "arguments": ["old"], "cmds": ["sleep"], "annotations": ["^1$"], "stages": ["prestart"]}));
    hooks.file(
        "61-old-mounts.json",
        &json!({"hook": "/bin/true", "hasbindmounts": true, "stage": ["poststart"]}),
    );
    hooks.file("70-gone.json", &json!({"version": "1.0.0", "hook": {"path": "/nonexistent"}, "when": {"always": true}, "stages": ["poststart"]}));
    hooks
}

#[test]
fn podman_and_inject_agree() {
    let hooks = various_hooks();
    let mask = HooksDir::new();
    mask.hook("10-always.json", "exit 0", json!({"always": false}), &["poststart"]);
    let empty = HooksDir::new();
    let runc = program::find("runc");
    let bare = Podman::new(&runc, &[empty.path()]);

    let containers: [(&[&str], &[&str]); 6] = [
        (&[], &["/bin/echo", "a"]),
        (&[], &["/bin/sleep", "0"]),
        (&["--annotation", "com.example.a=1"], &["/bin/true"]),
        (&["--annotation", "com.example.a=x", "--annotation", "b=1"], &["/bin/echo"]),
        (&["--volume", "/usr:/host:ro"], &["/bin/echo"]),
        (&["--tmpfs", "/scratch", "--annotation", "example=x"], &["/bin/sleep", "0"]),
    ];
    let dirs: [&[&Path]; 2] = [&[hooks.path()], &[hooks.path(), mask.path()]];
    let mut injected = 0;
    for dirs in dirs {
        let podman = Podman::new(&runc, dirs);
        for (number, (options, command)) in containers.iter().enumerate() {
            let name = program::unique_name();
            let options = [&["--name", &name][..], options].concat();
            podman.run(&options, command).success();
            bare.run(&options, command).success();
            let theirs = podman.config(&name)["hooks"].clone();

            let config = bare.config(&name).to_string();
            let mut inject = std::process::Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
            inject.args(["inject", "--as", "podman-4", "-"]);
            for dir in dirs {
                inject.arg("--hooks-dir").arg(dir);
            }
            // podman keeps poststop hooks to itself, and so none of these has that stage.
            let ours = program::run_with_input(&mut inject, config.as_bytes()).success();
            let ours: Value = serde_json::from_str(&ours).unwrap();
            assert_eq!(ours["hooks"], theirs, "container {number} {options:?} {command:?}");
            injected += ours["hooks"].as_object().map_or(0, serde_json::Map::len);
        }
    }
    assert!(injected > 12, "only {injected} stages had hooks");
}

#[test]
fn podman_runs_containers_through_the_wrapper() {
    let hooks = HooksDir::new();
    hooks.keep_states(&["createRuntime", "poststop"]);
    let place = program::temporary_directory();
    let runtime = place.path().join("hooked");
    // podman calls some commands without PATH, so the runtime must be found without it.
    let script = format!(
        "#!/bin/sh\nOCI_HOOKS_DIRS={} exec {} \"$@\"\n",
        hooks.path().display(),
        env!("CARGO_BIN_EXE_oci-hooks-runtime")
    );
    program::write_program(&runtime, &script);
    let empty = HooksDir::new();
    let podman = Podman::new(&runtime, &[empty.path()]);
    assert_eq!(podman.run(&["--name", "one"], &["/bin/echo", "ran"]).success(), "ran\n");
    podman.call(&["rm", "one"]).success();
    assert!(hooks.state("createRuntime")["id"].is_string());
    assert_eq!(hooks.state("poststop")["status"], "stopped");
}
