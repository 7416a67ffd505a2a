//! `oci-hooks inject` on what `runc spec` writes, run by runc and crun.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;
use crate::support::bundle::Bundle;
use crate::support::program;
use crate::support::runtime::{Container, Runtime};

fn inject(hooks: &HooksDir, bundle: &Bundle, options: &[&str]) {
    program::run(hooks.inject(options).arg("--in-place").arg(bundle.path())).success();
}

/// The stages that run on the host, in their order, with the status that runc and crun tell.
///
/// Neither keeps to the specification in all: to crun a container that is being made is made
/// already, and runc runs `poststart` hooks when it creates.
const STAGES: [(&str, &str, &str); 5] = [
    ("prestart", "creating", "created"),
    ("createRuntime", "creating", "created"),
    ("createContainer", "creating", "created"),
    ("poststart", "created", "running"),
    ("poststop", "stopped", "stopped"),
];

#[test]
fn hooks_of_every_stage_get_the_state() {
    for runtime in Runtime::ALL {
        let hooks = HooksDir::new();
        for (stage, ..) in STAGES {
            let script = format!("cat >\"$DIR/{stage}\"; echo {stage} >>\"$DIR/order\"");
            hooks.hook(&format!("{stage}.json"), &script, json!({"always": true}), &[stage]);
        }
        let always = json!({"always": true});
        hooks.hook("inside.json", "cat >/started", always, &["startContainer"]);
        let bundle = Bundle::new("test -s /started && echo ran; sleep 1000");
        bundle.edit(|config| config["annotations"]["com.example.a"] = json!("\"1\""));
        // The current podman makes createRuntime of prestart, podman 4 does not.
        inject(&hooks, &bundle, &["--as", "podman-4"]);

        let container = Container::new(runtime, &bundle);
        container.create().success();
        let pid = container.pid();
        container.start().success();
        container.delete().success();
        let order = hooks.read("order");
        assert!(order.lines().eq(STAGES.map(|(stage, ..)| stage)), "{runtime}: {order}");
        for (stage, runc, crun) in STAGES {
            let state = hooks.state(stage);
            let status = if runtime == Runtime::Runc { runc } else { crun };
            assert_eq!(state["status"], status, "{runtime} {stage}");
            assert_eq!(state["id"], container.id(), "{runtime} {stage}");
            assert_eq!(state["bundle"], bundle.path_str(), "{runtime} {stage}");
            assert_eq!(state["annotations"]["com.example.a"], "\"1\"", "{runtime} {stage}");
            if stage != "poststop" && stage != "createContainer" {
                assert_eq!(state["pid"], pid, "{runtime} {stage}");
            }
        }
        let inside: Value =
            serde_json::from_slice(&fs::read(bundle.inside("/started")).unwrap()).unwrap();
        assert_eq!(inside["id"], container.id(), "{runtime}");
    }
}

#[test]
fn the_container_runs_what_it_runs_without_hooks() {
    for runtime in Runtime::ALL {
        let hooks = HooksDir::new();
        hooks.keep_states(&["createRuntime", "poststart", "poststop"]);
        // crun misses the end of a hook that it gives a timeout if the container ends meanwhile.
        let text = hooks.read("poststart.json");
        fs::write(hooks.seen("poststart.json"), text.replace(",\"timeout\":100", "")).unwrap();
        assert!(!hooks.read("poststart.json").contains("timeout"));
        let bundle = Bundle::new("echo ran; exit 5");
        inject(&hooks, &bundle, &[]);
        let finished = Container::new(runtime, &bundle).run();
        let ended = (finished.stdout.as_str(), finished.status.code());
        assert_eq!(ended, ("ran\n", Some(5)), "{runtime}: {}", finished.stderr);
        assert_eq!(hooks.state("poststop")["status"], "stopped", "{runtime}");
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
            inject(&hooks, &bundle, &["--as", "podman-4"]);
            assert!(bundle.config()["hooks"][stage].is_array());
            let error = Container::new(runtime, &bundle).run().failure();
            assert!(!bundle.inside("/ran").exists(), "{runtime} {stage}");
            // crun says only that it failed.
            let expected = if runtime == Runtime::Runc { "not today" } else { "(exit code: 3)" };
            assert!(error.contains(expected), "{runtime} {stage}: {error}");
        }
    }
}

#[test]
fn a_hook_that_hangs_is_ended_at_its_timeout() {
    for runtime in Runtime::ALL {
        let hooks = HooksDir::new();
        let script = "cat >/dev/null; exec sleep 1000";
        hooks.hook("hang.json", script, json!({"always": true}), &["createRuntime"]);
        let text = hooks.read("hang.json");
        fs::write(hooks.seen("hang.json"), text.replace("\"timeout\":100", "\"timeout\":1"))
            .unwrap();
        let bundle = Bundle::new("echo ran >/ran");
        inject(&hooks, &bundle, &[]);
        let start = Instant::now();
        let error = Container::new(runtime, &bundle).run().failure();
        // No later than `program::DEADLINE`, or it would not have ended here.
        assert!(start.elapsed() >= Duration::from_secs(1), "{runtime}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
        if runtime == Runtime::Runc {
            assert!(error.contains("hook ran past specified timeout of 1.0s"), "{error}");
        }
    }
}

/// Runs a container whose hooks at three stages have no `env`, and returns what they found in
/// theirs. The image sets `LD_PRELOAD` and `FROM_IMAGE`, and the runtime itself has `OF_RUNTIME`.
fn environments(runtime: Runtime, options: &[&str]) -> [String; 3] {
    let hooks = HooksDir::new();
    let stages = ["createRuntime", "createContainer", "poststop"];
    for stage in stages {
        // Not `env`: a shell sets variables by itself.
        let script = format!(
            "cat >/dev/null; tr '\\0' '\\n' </proc/self/environ >{}",
            hooks.seen(stage).display()
        );
        hooks.file(
            &format!("{stage}.json"),
            &json!({
                "version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c", script]},
                "when": {"always": true}, "stages": [stage],
            }),
        );
    }
    let bundle = Bundle::new("true");
    bundle.edit(|config| {
        config["process"]["env"] = json!(["PATH=/bin", "LD_PRELOAD=/image.so", "FROM_IMAGE=1"]);
    });
    inject(&hooks, &bundle, options);
    let container = Container::new(runtime, &bundle);
    let mut command = container.command("run", &["--bundle", bundle.path_str()]);
    program::run(command.env("OF_RUNTIME", "1")).success();
    stages.map(|stage| hooks.read(stage))
}

#[test]
fn strict_keeps_every_environment_from_hooks() {
    for runtime in Runtime::ALL {
        for environment in environments(runtime, &["--strict"]) {
            assert_eq!(environment, "", "{runtime}");
        }
    }
}

/// What the option is for: without it a hook gets what its runtime has at the time.
#[test]
fn without_strict_environments_reach_hooks() {
    let [create_runtime, create_container, poststop] = environments(Runtime::Runc, &[]);
    assert!(create_container.contains("LD_PRELOAD=/image.so\n"), "{create_container}");
    assert!(create_container.contains("FROM_IMAGE=1\n"), "{create_container}");
    for environment in [create_runtime, poststop] {
        assert!(environment.contains("OF_RUNTIME=1\n"), "{environment}");
    }
    for environment in environments(Runtime::Crun, &[]) {
        assert!(environment.contains("OF_RUNTIME=1\n"), "{environment}");
    }
}
