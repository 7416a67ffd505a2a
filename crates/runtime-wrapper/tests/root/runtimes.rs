//! `oci-hooks inject` on the output of `runc spec`, run by runc and crun.

use std::fs;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::{RuntimeContainer, TestRuntime};
use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;

fn inject(hooks: &HooksDir, bundle: &BusyboxBundle, options: &[&str]) {
    program::run(hooks.inject(options).arg("--in-place").arg(bundle.path())).success();
}

/// The stages that run on the host, in order, with the container status that runc and crun report.
///
/// Both deviate from the specification: crun reports `created` for a container that is being created,
/// and runc runs `poststart` hooks in `create`.
const STAGES: [(&str, &str, &str); 5] = [
    ("prestart", "creating", "created"),
    ("createRuntime", "creating", "created"),
    ("createContainer", "creating", "created"),
    ("poststart", "created", "running"),
    ("poststop", "stopped", "stopped"),
];

#[test]
fn hooks_of_every_stage_get_the_state() {
    for runtime in TestRuntime::ALL {
        let hooks = HooksDir::new();
        for (stage, ..) in STAGES {
            let script = format!("cat >\"$DIR/{stage}\"; echo {stage} >>\"$DIR/order\"");
            hooks.hook(&format!("{stage}.json"), &script, json!({"always": true}), &[stage]);
        }
        let always = json!({"always": true});
        hooks.hook("inside.json", "cat >/started", always, &["startContainer"]);
        let bundle = BusyboxBundle::new("test -s /started && echo ran; sleep 1000");
        bundle.edit(|config| config["annotations"]["com.example.a"] = json!("\"1\""));
        // The current podman converts prestart to createRuntime, podman 4 does not.
        inject(&hooks, &bundle, &["--as", "podman-4"]);

        let container = RuntimeContainer::new(runtime, &bundle);
        container.create().success();
        let pid = container.pid();
        container.start().success();
        container.delete().success();
        let order = hooks.read("order");
        assert!(order.lines().eq(STAGES.map(|(stage, ..)| stage)), "{runtime}: {order}");
        for (stage, runc, crun) in STAGES {
            let state = hooks.state(stage);
            let status = if runtime == TestRuntime::Runc { runc } else { crun };
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
fn container_runs_the_same_with_and_without_hooks() {
    for runtime in TestRuntime::ALL {
        let hooks = HooksDir::new();
        hooks.keep_states(&["createRuntime", "poststart", "poststop"]);
        // crun misses the end of a hook with a timeout if the container ends meanwhile.
        let text = hooks.read("poststart.json");
        fs::write(hooks.output_path("poststart.json"), text.replace(",\"timeout\":100", ""))
            .unwrap();
        assert!(!hooks.read("poststart.json").contains("timeout"));
        let bundle = BusyboxBundle::new("echo ran; exit 5");
        inject(&hooks, &bundle, &[]);
        let finished = RuntimeContainer::new(runtime, &bundle).run();
        let ended = (finished.stdout.as_str(), finished.status.code());
        assert_eq!(ended, ("ran\n", Some(5)), "{runtime}: {}", finished.stderr);
        assert_eq!(hooks.state("poststop")["status"], "stopped", "{runtime}");
    }
}

#[test]
fn a_failing_hook_stops_the_container() {
    for runtime in TestRuntime::ALL {
        for stage in ["prestart", "createRuntime", "createContainer"] {
            let hooks = HooksDir::new();
            let script = "cat >/dev/null; echo not today >&2; exit 3";
            hooks.hook("refuse.json", script, json!({"commands": ["/sh$"]}), &[stage]);
            let bundle = BusyboxBundle::new("echo ran >/ran");
            inject(&hooks, &bundle, &["--as", "podman-4"]);
            assert!(bundle.config()["hooks"][stage].is_array());
            let error = RuntimeContainer::new(runtime, &bundle).run().failure();
            assert!(!bundle.inside("/ran").exists(), "{runtime} {stage}");
            // crun reports only the exit code.
            let expected =
                if runtime == TestRuntime::Runc { "not today" } else { "(exit code: 3)" };
            assert!(error.contains(expected), "{runtime} {stage}: {error}");
        }
    }
}

#[test]
fn hanging_hook_is_killed_at_its_timeout() {
    for runtime in TestRuntime::ALL {
        let hooks = HooksDir::new();
        let script = "cat >/dev/null; exec sleep 1000";
        hooks.hook("hang.json", script, json!({"always": true}), &["createRuntime"]);
        let text = hooks.read("hang.json");
        fs::write(hooks.output_path("hang.json"), text.replace("\"timeout\":100", "\"timeout\":1"))
            .unwrap();
        let bundle = BusyboxBundle::new("echo ran >/ran");
        inject(&hooks, &bundle, &[]);
        let start = Instant::now();
        let error = RuntimeContainer::new(runtime, &bundle).run().failure();
        // If the hook had run longer than `program::DEADLINE`, the call above would have failed.
        assert!(start.elapsed() >= Duration::from_secs(1), "{runtime}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
        if runtime == TestRuntime::Runc {
            assert!(error.contains("hook ran past specified timeout of 1.0s"), "{error}");
        }
    }
}

/// Runs a container whose hooks at three stages have no `env`, and returns the hooks' environments.
/// The image sets `LD_PRELOAD` and `FROM_IMAGE`, and the runtime itself has `OF_RUNTIME`.
fn environments(runtime: TestRuntime, options: &[&str]) -> [String; 3] {
    let hooks = HooksDir::new();
    let stages = ["createRuntime", "createContainer", "poststop"];
    for stage in stages {
        // Not `env`: a shell sets variables of its own.
        let script = format!(
            "cat >/dev/null; tr '\\0' '\\n' </proc/self/environ >{}",
            hooks.output_path(stage).display()
        );
        hooks.file(
            &format!("{stage}.json"),
            &json!({
                "version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c", script]},
                "when": {"always": true}, "stages": [stage],
            }),
        );
    }
    let bundle = BusyboxBundle::new("true");
    bundle.edit(|config| {
        config["process"]["env"] = json!(["PATH=/bin", "LD_PRELOAD=/image.so", "FROM_IMAGE=1"]);
    });
    inject(&hooks, &bundle, options);
    let container = RuntimeContainer::new(runtime, &bundle);
    let mut command = container.command("run", &["--bundle", bundle.path_str()]);
    program::run(command.env("OF_RUNTIME", "1")).success();
    stages.map(|stage| hooks.read(stage))
}

#[test]
fn strict_gives_hooks_an_empty_environment() {
    for runtime in TestRuntime::ALL {
        for environment in environments(runtime, &["--strict"]) {
            assert_eq!(environment, "", "{runtime}");
        }
    }
}

/// The reason for `--strict`: without it a hook inherits the environment of the runtime's process at its stage, which
/// may have variables of the image.
#[test]
fn hooks_inherit_environments_without_strict() {
    let [create_runtime, create_container, poststop] = environments(TestRuntime::Runc, &[]);
    assert!(create_container.contains("LD_PRELOAD=/image.so\n"), "{create_container}");
    assert!(create_container.contains("FROM_IMAGE=1\n"), "{create_container}");
    for environment in [create_runtime, poststop] {
        assert!(environment.contains("OF_RUNTIME=1\n"), "{environment}");
    }
    for environment in environments(TestRuntime::Crun, &[]) {
        assert!(environment.contains("OF_RUNTIME=1\n"), "{environment}");
    }
}
