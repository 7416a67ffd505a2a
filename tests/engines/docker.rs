//! hooks.d for Docker, through `oci-hooks-runtime`.

use std::fs;

use serde_json::json;

use crate::hooks_dir::HooksDir;
use crate::support::dockerd::Dockerd;
use crate::support::program;

#[test]
fn docker_runs_hooks_of_every_stage_and_tells_what_is_wrong() {
    let hooks = HooksDir::new();
    hooks.keep_states(&["createRuntime", "createContainer", "poststart", "poststop"]);
    let place = program::temporary_directory();
    let runtime = place.path().join("hooked");
    let script = format!(
        "#!/bin/sh\nOCI_HOOKS_DIRS={} exec {} \"$@\"\n",
        hooks.path().display(),
        env!("CARGO_BIN_EXE_oci-hooks-runtime")
    );
    program::write_program(&runtime, &script);
    let docker = Dockerd::start(&json!({"hooked": {"path": runtime}}));

    let output = docker.run("hooked", &["--name", "one"], &["/bin/sh", "-c", "echo ran; exit 5"]);
    assert_eq!(output.status.code(), Some(5), "{}", output.stderr);
    assert_eq!(output.stdout, "ran\n");
    for stage in ["createRuntime", "createContainer", "poststart"] {
        assert!(hooks.state(stage)["id"].is_string(), "{stage}");
    }
    docker.docker(&["rm", "one"]).success();
    assert_eq!(hooks.state("poststop")["status"], "stopped");

    docker.run("hooked", &["--name", "two", "--detach"], &["/bin/sleep", "1000"]).success();
    assert_eq!(docker.docker(&["exec", "two", "/bin/echo", "inside"]).success(), "inside\n");
    docker.docker(&["rm", "--force", "two"]).success();

    fs::write(hooks.path().join("zz-bad.json"), "{ // comment\n}").unwrap();
    let error = docker.run("hooked", &["--rm"], &["/bin/true"]).failure();
    assert!(error.contains("zz-bad.json:1:3: comment in JSON"), "{error}");
}
