//! `oci-hooks inject --capture`: recording the output and the exit status of hooks.

use std::fs;

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::{RuntimeContainer, TestRuntime};
use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;

/// Makes the hooks that match a bundle record to the directory `records`.
fn capture(hooks: &HooksDir, bundle: &BusyboxBundle) -> String {
    let capture = format!("--capture={}", hooks.output_path("records").display());
    let options = [&capture, "--as", "podman-4", "--in-place"];
    let injected = program::run(hooks.inject(&options).arg(bundle.path()));
    let said = injected.stderr.clone();
    injected.success();
    said
}

/// Returns the records in the order of creation.
fn records(hooks: &HooksDir) -> Vec<Value> {
    let mut files: Vec<_> = fs::read_dir(hooks.output_path("records"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
}

#[test]
fn each_hook_is_recorded_and_gets_the_unchanged_state() {
    const RECORDED: [&str; 5] =
        ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    for runtime in TestRuntime::ALL {
        let hooks = HooksDir::new();
        let stages = [&RECORDED[..], &["startContainer"]].concat();
        hooks.hook("talk.json", "cat; echo problem >&2", json!({"always": true}), &stages);
        let bundle = BusyboxBundle::new("sleep 1000");
        // Existing hooks are not changed: they record the state as passed by the runtime.
        bundle.edit(|config| {
            for stage in RECORDED {
                let script = format!("cat >{}", hooks.output_path(stage).display());
                let args = ["sh", "-c", &script];
                config["hooks"][stage] = json!([{"path": "/bin/sh", "args": args, "env": []}]);
            }
        });
        let said = capture(&hooks, &bundle);
        assert!(said.contains("talk.json is not recorded at startContainer"), "{said}");

        let container = RuntimeContainer::new(runtime, &bundle);
        // If the container ended while a hook runs, crun would miss the end of the hook.
        container.create().success();
        container.start().success();
        container.delete().success();
        let records = records(&hooks);
        let stages: Vec<_> = records.iter().map(|record| &record["stage"]).collect();
        assert_eq!(stages, RECORDED, "{runtime}");
        for (record, stage) in records.iter().zip(RECORDED) {
            assert_eq!(record["hook"], "talk.json", "{runtime} {stage}");
            assert_eq!(record["exit_code"], 0, "{runtime} {record}");
            assert_eq!(record["stderr"], "problem\n", "{runtime} {stage}");
            assert_eq!(record["container"], container.id(), "{runtime} {stage}");
            assert_eq!(record["stdout"], hooks.read(stage), "{runtime} {stage}");
        }
    }
}

#[test]
fn recorded_hook_fails_like_an_unrecorded_one() {
    for runtime in TestRuntime::ALL {
        let hooks = HooksDir::new();
        let script = "cat >/dev/null; echo not today >&2; exit 3";
        hooks.hook("refuse.json", script, json!({"always": true}), &["createRuntime"]);
        let bundle = BusyboxBundle::new("echo ran >/ran");
        capture(&hooks, &bundle);
        let error = RuntimeContainer::new(runtime, &bundle).run().failure();
        let expected = if runtime == TestRuntime::Runc { "not today" } else { "(exit code: 3)" };
        assert!(error.contains(expected), "{runtime}: {error}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
        let records = records(&hooks);
        assert_eq!(records.len(), 1, "{runtime}");
        assert_eq!(records[0]["exit_code"], 3, "{runtime}");
        assert_eq!(records[0]["stderr"], "not today\n", "{runtime}");
    }
}

#[test]
fn hanging_recorded_hook_is_killed_and_recorded() {
    for runtime in TestRuntime::ALL {
        let hooks = HooksDir::new();
        let script = "cat >/dev/null; echo before; sleep 1000";
        hooks.hook("hang.json", script, json!({"always": true}), &["createContainer"]);
        let text = hooks.read("hang.json");
        // Enough for the script to start on a busy machine.
        let text = text.replace("\"timeout\":100", "\"timeout\":10");
        fs::write(hooks.output_path("hang.json"), text).unwrap();
        let bundle = BusyboxBundle::new("echo ran >/ran");
        capture(&hooks, &bundle);
        let error = RuntimeContainer::new(runtime, &bundle).run().failure();
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
        assert!(hooks.output_path("records").exists(), "{runtime}: {error}");
        let records = records(&hooks);
        assert_eq!(records.len(), 1, "{runtime}");
        assert_eq!(records[0]["timed_out"], true, "{runtime}: {}", records[0]);
        assert_eq!(records[0]["stdout"], "before\n", "{runtime}");
        let milliseconds = records[0]["duration_ms"].as_u64().unwrap();
        let longest = u64::try_from(program::DEADLINE.as_millis()).unwrap();
        assert!((10_000..longest).contains(&milliseconds), "{runtime}: {milliseconds} ms");
    }
}
