//! podman reads the same directories with the same result as `oci-hooks inject`; and podman runs the wrapper.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use oci_hooks_testsupport::podman::{self, TestPodman};
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;

/// Options and commands of containers that differ in the conditions of hooks.
const CONTAINERS: [PodmanRun; 11] = [
    (&[], &["/bin/echo", "a"]),
    (&[], &["/bin/sleep", "0"]),
    (&["--annotation", "com.example.a=1"], &["/bin/true"]),
    (&["--annotation", "com.example.a=x", "--annotation", "b=1"], &["/bin/echo"]),
    (&["--volume", "/usr:/host:ro"], &["/bin/echo"]),
    (&["--volume", "/data"], &["/bin/true"]),
    (&["--tmpfs", "/scratch", "--annotation", "example=x"], &["/bin/sleep", "0"]),
    // Labels do not count. Of the mounts that podman adds itself, the mount at `/var/tmp` for a
    // read-only root counts with podman 4, and those for systemd never count.
    (&["--label", "com.example.a=1", "--read-only"], &["/bin/true"]),
    (&["--read-only", "--read-only-tmpfs=false"], &["/bin/true"]),
    (&["--systemd", "always"], &["/bin/true"]),
    (&["--entrypoint", "/bin/sleep", "--annotation", "com.example.a=12"], &["0"]),
];

/// Returns hooks of both schema versions for each kind of condition.
fn various_hooks() -> HooksDir {
    let hooks = HooksDir::new();
    let script = "cat >/dev/null";
    let stage = &["poststart"][..];
    let always = || json!({"always": true});
    hooks.hook("10-always.json", script, always(), &["createRuntime", "poststart"]);
    hooks.hook("20-Sleep.json", script, json!({"commands": ["/sleep$"]}), stage);
    let commands = json!({"commands": ["^/bin/e", "nothing"]});
    hooks.hook("20-echo.json", script, commands, &["createContainer"]);
    hooks.hook("30-mounts.json", script, json!({"hasBindMounts": true}), &["prestart"]);
    hooks.hook("31-no-mounts.json", script, json!({"hasBindMounts": false}), stage);
    let both = json!({"annotations": {"^com\\.example\\.a$": "^[0-9]+$"}, "always": true});
    hooks.hook("40-both.json", script, both, stage);
    hooks.hook("41-value.json", script, json!({"annotations": {"example": "^x$"}}), stage);
    hooks.hook("50-never.json", script, json!({}), stage);
    hooks.hook("51-no-stage.json", script, always(), &[]);
    let twice = ["prestart", "createRuntime", "prestart"];
    hooks.hook("52-twice.json", script, json!({"commands": ["/true$"]}), &twice);
    hooks.file(
        "60-old.json",
        &json!({
            "hook": "/bin/cat", "arguments": ["-"], "cmds": ["sleep"], "annotations": ["^1$"],
            "stages": ["prestart"],
        }),
    );
    hooks.file(
        "61-old-mounts.json",
        &json!({"hook": "/bin/cat", "hasbindmounts": true, "stage": ["poststart"]}),
    );
    let gone = json!({"path": "/nonexistent"});
    hooks.file(
        "70-gone.json",
        &json!({"version": "1.0.0", "hook": gone, "when": always(), "stages": stage}),
    );
    hooks
}

/// Options and command of `podman run`.
type PodmanRun = (&'static [&'static str], &'static [&'static str]);

/// Runs a container and returns the configuration that podman wrote.
fn config(podman: &TestPodman, (options, command): PodmanRun) -> Value {
    let name = program::unique_name();
    let options = [&["--name", &name, "--hostname", "same"][..], options].concat();
    podman.run(&options, command).success();
    podman.config(&name)
}

/// Returns the output of `inject` for a configuration that podman wrote without hooks.
fn inject(config: &Value, dirs: &[&Path]) -> Value {
    let mut inject = std::process::Command::new(program::built_program("oci-hooks"));
    inject.args(["inject", "--as", podman::profile(), "--run-precreate", "-"]);
    for dir in dirs {
        inject.arg("--hooks-dir").arg(dir);
    }
    let config = config.to_string();
    let ours = program::run_with_input(&mut inject, config.as_bytes()).success();
    serde_json::from_str(&ours).unwrap()
}

/// Removes intended differences from the hooks of a configuration:
///
/// - podman itself runs `poststop` hooks, which the runtime has to run with the configuration of `inject`;
/// - podman omits an empty `hooks` when it writes the configuration.
fn as_podman_has_it(mut config: Value) -> Value {
    let hooks = config["hooks"].take();
    let Value::Object(mut hooks) = hooks else { return hooks };
    hooks.remove("poststop");
    if hooks.is_empty() { json!({}) } else { Value::Object(hooks) }
}

#[test]
fn podman_and_inject_agree() {
    let hooks = various_hooks();
    let mask = HooksDir::new();
    mask.hook("10-always.json", "exit 0", json!({"always": false}), &["poststart"]);
    let replaced = json!({"commands": ["/true$"]});
    mask.hook("20-echo.json", "cat >/dev/null", replaced, &["createRuntime"]);
    let empty = HooksDir::new();
    let runc = program::find("runc");
    let bare = TestPodman::new(&runc, &[empty.path()]);
    let bare = CONTAINERS.map(|container| config(&bare, container));

    let dirs: [&[&Path]; 3] =
        [&[hooks.path()], &[hooks.path(), mask.path()], &[mask.path(), hooks.path()]];
    let mut injected = 0;
    for dirs in dirs {
        let podman = TestPodman::new(&runc, dirs);
        for (container, bare) in CONTAINERS.into_iter().zip(&bare) {
            let theirs = as_podman_has_it(config(&podman, container));
            let ours = as_podman_has_it(inject(bare, dirs));
            assert_eq!(ours, theirs, "{container:?} with {dirs:?}");
            injected += ours.as_object().map_or(0, serde_json::Map::len);
        }
    }
    assert!(injected > 30, "only {injected} stages had hooks");
}

#[test]
fn podman_and_inject_agree_on_precreate_hooks() {
    let hooks = HooksDir::new();
    let add = |value: &str| format!("jq -c '.process.env += [\"{value}\"]'");
    let always = || json!({"always": true});
    let precreate = &["precreate"][..];
    hooks.hook("10.json", &add("A=1"), always(), precreate);
    hooks.hook("20.json", &add("B=1"), json!({"commands": ["/sleep$"]}), precreate);
    // This hook sees the changes of the others, and the injected hooks.
    let count = "jq -c '.process.env += [\"C=\\(.process.env | length) \\(.hooks | keys)\"]'";
    hooks.hook("30.json", count, always(), precreate);
    let stages = ["createRuntime", "poststart", "poststop"];
    hooks.hook("40.json", "cat >/dev/null", always(), &stages);
    let empty = HooksDir::new();
    let runc = program::find("runc");
    let bare = TestPodman::new(&runc, &[empty.path()]);
    let podman = TestPodman::new(&runc, &[hooks.path()]);
    for container in &CONTAINERS[..3] {
        let theirs = config(&podman, *container);
        let ours = inject(&config(&bare, *container), &[hooks.path()]);
        let environment = |config: &Value| -> Vec<String> {
            let list = config["process"]["env"].as_array().unwrap().iter();
            // In the configuration of `inject` the runtime runs the poststop hook, so its stage is listed.
            let text = |value: &Value| value.as_str().unwrap().replace(r#","poststop"]"#, "]");
            let mut variables: Vec<_> = list.map(text).collect();
            // podman adds its own variables in no fixed order.
            variables.sort();
            variables
        };
        let variables = environment(&ours);
        assert!(variables.iter().any(|variable| variable == "A=1"), "{variables:?}");
        assert!(variables.iter().any(|variable| variable.starts_with("C=")), "{variables:?}");
        assert_eq!(variables, environment(&theirs), "{container:?}");
        assert_eq!(as_podman_has_it(ours), as_podman_has_it(theirs), "{container:?}");
    }
}

/// The hook uses sed, so that the test depends on the exact text that podman passes.
#[test]
fn podman_and_inject_accept_the_same_precreate_output_but_for_doubtful_text() {
    let hooks = HooksDir::new();
    let runc = program::find("runc");
    let podman = TestPodman::new(&runc, &[hooks.path()]);
    let empty = HooksDir::new();
    let bare = config(&TestPodman::new(&runc, &[empty.path()]), CONTAINERS[0]);
    let mut accepted = 0;
    // Texts that podman's decoder accepts and changes: runtimes may read them differently.
    let doubtful = [
        (r#"s/"hostname":"same"/"hostname":"a\xff"/"#, "not UTF-8"),
        (r#"s/}$/,"annotations":{"added":"1"}}/"#, "duplicate field `annotations`"),
    ];
    for change in [
        doubtful[0].0,
        doubtful[1].0,
        r#"s/"hostname":"same"/"hostname":"other"/"#,
        r#"s/"hostname":"same"/"hostname":null/"#,
        r#"s/}$/,"domainname":"added"}/"#,
        r#"s/"hostname":"same"/"hostname":1/"#,
        r#"s/"hostname":"same"/"hostname":["same"]/"#,
        r#"s/"process":{/&"terminal":"no",/"#,
        r#"s/"uid":0/"uid":-1/"#,
        r#"s/"uid":0/"uid":0.0/"#,
        r#"s/"mounts":/"mounts":{},"x":/"#,
    ] {
        let script = format!("LC_ALL=C sed '{change}'");
        hooks.hook("10.json", &script, json!({"always": true}), &["precreate"]);
        let name = program::unique_name();
        let options = [&["--name", &name, "--hostname", "same"][..], CONTAINERS[0].0].concat();
        let theirs = podman.run(&options, CONTAINERS[0].1);
        let mut ours = std::process::Command::new(program::built_program("oci-hooks"));
        ours.args(["inject", "--as", "podman-4", "--run-precreate", "-", "--hooks-dir"]);
        let ours = program::run_with_input(ours.arg(hooks.path()), bare.to_string().as_bytes());
        let case = format!("{change}\n{}\n{}", theirs.stderr, ours.stderr);
        if let Some((_, said)) = doubtful.iter().find(|(doubtful, _)| *doubtful == change) {
            assert!(theirs.status.success() && !ours.status.success(), "{case}");
            assert!(ours.stderr.contains(said), "{case}");
            continue;
        }
        assert_eq!(ours.status.success(), theirs.status.success(), "{case}");
        if ours.status.success() {
            let ours: Value = serde_json::from_str(&ours.stdout).unwrap();
            let theirs = podman.config(&name);
            let without_null = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            assert_eq!(
                without_null(&ours["hostname"]),
                without_null(&theirs["hostname"]),
                "{case}"
            );
            let added = [&ours, &theirs].map(|it| it["domainname"].clone());
            assert_eq!(added[0], added[1], "{case}");
            accepted += 1;
        }
    }
    assert_eq!(accepted, 3);
}

#[test]
fn podman_and_inject_reject_the_same_files() {
    let hooks = HooksDir::new();
    let podman = TestPodman::new(&program::find("runc"), &[hooks.path()]);
    let hook = json!({"path": "/bin/cat"});
    for content in [
        "{",
        "[]",
        r#"{"version": "2.0.0"}"#,
        &json!({"version": "1.0.0", "hook": hook, "stages": ["later"]}).to_string(),
        &json!({"version": "1.0.0", "hook": hook, "when": {"commands": ["("]}, "stages": []})
            .to_string(),
        &json!({"version": "1.0.0", "hook": hook, "when": {}}).to_string(),
    ] {
        fs::write(hooks.output_path("bad.json"), content).unwrap();
        let theirs = podman.run(&["--rm"], &["/bin/true"]);
        let said = theirs.failure();
        assert!(said.contains("setting up OCI Hooks"), "{content}: {said}");
        let config = br#"{"process": {"args": ["/bin/true"]}}"#;
        let ours =
            program::run_with_input(&mut hooks.inject(&["--as", podman::profile(), "-"]), config);
        assert_eq!(ours.status.code(), Some(2), "{content}");
    }
}

#[test]
fn podman_runs_containers_through_the_wrapper() {
    let hooks = HooksDir::new();
    hooks.keep_states(&["createRuntime", "createContainer", "poststart", "poststop"]);
    let empty = HooksDir::new();
    // podman calls `delete` without PATH: the runtime must still be found.
    let podman = TestPodman::new(&hooks.runtime(), &[empty.path()]);
    let ran = podman.run(&["--name", "one"], &["/bin/sh", "-c", "echo ran; exit 5"]);
    assert_eq!((ran.stdout.as_str(), ran.status.code()), ("ran\n", Some(5)), "{}", ran.stderr);
    podman.call(&["rm", "one"]).success();
    for stage in ["createRuntime", "createContainer", "poststart"] {
        assert!(hooks.state(stage)["id"].is_string(), "{stage}");
    }
    assert_eq!(hooks.state("poststop")["status"], "stopped");

    podman.run(&["--name", "two", "--detach"], &["/bin/sleep", "1000"]).success();
    assert_eq!(podman.call(&["exec", "two", "/bin/echo", "inside"]).success(), "inside\n");
    let exec = podman.call(&["exec", "two", "/bin/sh", "-c", "exit 9"]);
    assert_eq!((exec.status.code(), exec.status.signal()), (Some(9), None));
    podman.call(&["stop", "--time", "0", "two"]).success();
    // podman rewrites the configuration for each start.
    podman.call(&["start", "two"]).success();
    podman.call(&["rm", "--force", "--time", "0", "two"]).success();

    fs::write(hooks.output_path("zz-bad.json"), "{ // comment\n}").unwrap();
    let error = podman.run(&["--rm"], &["/bin/true"]).failure();
    assert!(error.contains("oci-hooks: ") && error.contains("zz-bad.json:1:3"), "{error}");
}
