//! hooks.d for containerd, through `oci-hooks-runtime`.

use std::fs;

use oci_hooks_testsupport::containerd::PrivateContainerd;
use oci_hooks_testsupport::{program, rootfs};
use serde_json::json;

use crate::hooks_dir::HooksDir;

#[test]
fn containerd_runs_matching_hooks_and_reports_errors() {
    let hooks = HooksDir::new();
    for stage in ["createRuntime", "createContainer", "poststart", "poststop"] {
        let when = json!({"annotations": {"^com\\.example\\.hooks$": "^yes$"}});
        hooks.hook(&format!("{stage}.json"), &format!("cat >\"$DIR/{stage}\""), when, &[stage]);
    }
    let runtime = hooks.runtime();
    let root = program::temporary_directory();
    rootfs::fill(root.path());
    let containerd = PrivateContainerd::start();

    let run = |options: &[&str], id: &str, command: &[&str]| {
        containerd.run(&runtime, options, root.path(), id, command)
    };
    assert_eq!(run(&["--rm"], "plain", &["/bin/echo", "ran"]).success(), "ran\n");
    assert!(!hooks.output_path("createRuntime").exists());

    let annotated = ["--rm", "--annotation", "com.example.hooks=yes"];
    let finished = run(&annotated, "one", &["/bin/sh", "-c", "echo ran; exit 5"]);
    assert_eq!(finished.status.code(), Some(5), "{}", finished.stderr);
    assert_eq!(finished.stdout, "ran\n");
    for stage in ["createRuntime", "createContainer", "poststart", "poststop"] {
        assert_eq!(hooks.state(stage)["id"], "one", "{stage}");
    }

    run(&["--detach"], "two", &["/bin/sleep", "1000"]).success();
    let exec = ["tasks", "exec", "--exec-id", "e", "two", "/bin/sh", "-c", "echo inside; exit 9"];
    let finished = containerd.ctr(&exec);
    assert_eq!((finished.stdout.as_str(), finished.status.code()), ("inside\n", Some(9)));
    containerd.ctr(&["tasks", "delete", "--force", "two"]);

    fs::write(hooks.output_path("zz-bad.json"), "{ // comment\n}").unwrap();
    let error = run(&["--rm"], "three", &["/bin/true"]).failure();
    let expected =
        format!("oci-hooks: {}", hooks.output_path("zz-bad.json:1:3: comment in JSON").display());
    assert!(error.contains(&expected), "{error}");
}
