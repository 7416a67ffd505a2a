//! `oci-hooks inject` on what `runc spec` writes, run by runc and crun.

use std::fs;

use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;
use crate::support::bundle::Bundle;
use crate::support::program;
use crate::support::runtime::{Container, Runtime};

fn inject(hooks: &HooksDir, bundle: &Bundle, options: &[&str]) {
    program::run(hooks.inject(options).arg("--in-place").arg(bundle.path())).success();
}

#[test]
fn hooks_of_every_stage_get_the_state() {
    for runtime in Runtime::ALL {
        let hooks = HooksDir::new();
        hooks.keep_states(&[
            "prestart",
            "createRuntime",
            "createContainer",
            "poststart",
            "poststop",
        ]);
        let always = json!({"always": true});
        hooks.hook("inside.json", "cat >/started", always, &["startContainer"]);
        let bundle = Bundle::new("test -s /started && echo ran");
        inject(&hooks, &bundle, &["--as", "podman-4"]);
        let hooks_of = bundle.config()["hooks"].clone();
        assert_eq!(hooks_of["prestart"].as_array().map(Vec::len), Some(1));

        let container = Container::new(runtime, &bundle);
        assert_eq!(container.run().success(), "ran\n", "{runtime}");
        for stage in ["prestart", "createRuntime", "createContainer", "poststart", "poststop"] {
            let state = hooks.state(stage);
            assert_eq!(state["id"], container.id(), "{runtime} {stage}");
            assert_eq!(state["bundle"], bundle.path_str(), "{runtime} {stage}");
            assert!(state["status"].is_string(), "{runtime} {stage}: {state}");
        }
        assert_eq!(hooks.state("poststop")["status"], "stopped", "{runtime}");
        let inside: Value =
            serde_json::from_slice(&fs::read(bundle.inside("/started")).unwrap()).unwrap();
        assert_eq!(inside["id"], container.id(), "{runtime}");
    }
}

#[test]
fn a_failing_hook_stops_the_container() {
    for runtime in Runtime::ALL {
        for stage in ["prestart", "createRuntime", "createContainer"] {
            let hooks = HooksDir::new();
            let script = "cat >/dev/null; echo not today >&2; exit 3";
            hooks.hook("refuse.json", script, json!({"commands": ["/sh$"]}), &[stage]);
            let bundle = Bundle::new("echo ran >/ran");
            inject(&hooks, &bundle, &[]);
            let error = Container::new(runtime, &bundle).run().failure();
            assert!(!bundle.inside("/ran").exists(), "{runtime} {stage}");
            if runtime == Runtime::Runc {
                assert!(error.contains("not today"), "{stage}: {error}");
            }
        }
    }
}

#[test]
fn a_hook_that_hangs_is_ended_at_its_timeout() {
    for runtime in Runtime::ALL {
        let hooks = HooksDir::new();
        hooks.hook(
            "hang.json",
            "cat >/dev/null; exec sleep 1000",
            json!({"always": true}),
            &["createRuntime"],
        );
        let text = fs::read_to_string(hooks.seen("hang.json")).unwrap();
        fs::write(hooks.seen("hang.json"), text.replace("\"timeout\":10", "\"timeout\":1"))
            .unwrap();
        let bundle = Bundle::new("echo ran >/ran");
        inject(&hooks, &bundle, &[]);
        Container::new(runtime, &bundle).run().failure();
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn row_27_strict_keeps_the_environment_of_the_image_from_hooks() {
    for runtime in Runtime::ALL {
        for strict in [false, true] {
            let hooks = HooksDir::new();
            let script = format!("cat >/dev/null; env >{}", hooks.seen("env").display());
            hooks.file(
                "env.json",
                &json!({
                    "version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c", script]},
                    "when": {"always": true}, "stages": ["createContainer"],
                }),
            );
            let bundle = Bundle::new("true");
            bundle.edit(|config| {
                config["process"]["env"] = json!(["PATH=/bin", "FROM_IMAGE=1"]);
            });
            inject(&hooks, &bundle, if strict { &["--strict"] } else { &[] });
            let container = Container::new(runtime, &bundle);
            container.run().success();
            let env = hooks.read("env");
            let set_by_sh = ["PWD=", "SHLVL=", "_=", "OLDPWD="];
            let inherited = env.lines().any(|l| !set_by_sh.iter().any(|own| l.starts_with(own)));
            assert_eq!(inherited, !strict, "{runtime}: {env}");
            if runtime == Runtime::Runc && !strict {
                assert!(env.contains("FROM_IMAGE=1"), "{env}");
            }
        }
    }
}

#[test]
fn capture_records_what_each_hook_does() {
    for runtime in Runtime::ALL {
        let hooks = HooksDir::new();
        let stages =
            ["createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
        let script = "cat; echo problem >&2";
        hooks.hook("talk.json", script, json!({"always": true}), &stages);
        let records = hooks.seen("records");
        let bundle = Bundle::new("true");
        let capture = format!("--capture={}", records.display());
        let ran = program::run(hooks.inject(&[&capture, "--in-place"]).arg(bundle.path()));
        assert!(ran.stderr.contains("not recorded at startContainer"), "{}", ran.stderr);
        ran.success();
        let container = Container::new(runtime, &bundle);
        container.run().success();

        let mut seen = Vec::new();
        for entry in fs::read_dir(&records).unwrap() {
            let record: Value =
                serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
            assert_eq!(record["hook"], "talk.json");
            assert_eq!(record["exit_code"], 0, "{record}");
            assert_eq!(record["stderr"], "problem\n");
            assert_eq!(record["container"], container.id());
            let state: Value = serde_json::from_str(record["stdout"].as_str().unwrap()).unwrap();
            assert_eq!(state["id"], container.id());
            seen.push(record["stage"].as_str().unwrap().to_owned());
        }
        seen.sort();
        assert_eq!(
            seen,
            ["createContainer", "createRuntime", "poststart", "poststop"],
            "{runtime}"
        );
    }
}
