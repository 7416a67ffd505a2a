//! hooks.d for containerd, through `oci-hooks-runtime`.

use std::fs;

use serde_json::json;

use crate::hooks_dir::HooksDir;
use crate::support::containerd::Containerd;
use crate::support::program;
use crate::support::rootfs;

#[test]
fn containerd_runs_hooks_that_match_an_annotation_and_tells_what_is_wrong() {
    let hooks = HooksDir::new();
    for stage in ["createRuntime", "createContainer", "poststart", "poststop"] {
        let when = json!({"annotations": {"^com\\.example\\.hooks$": "^yes$"}});
        hooks.hook(&format!("{stage}.json"), &format!("cat >\"$DIR/{stage}\""), when, &[stage]);
    }
    let runtime = hooks.runtime();
    let root = program::temporary_directory();
    rootfs::fill(root.path());
    let containerd = Containerd::start();

    let run = |options: &[&str], id: &str, command: &[&str]| {
        containerd.run(&runtime, options, root.path(), id, command)
    };
    assert_eq!(run(&["--rm"], "plain", &["/bin/echo", "ran"]).success(), "ran\n");
    assert!(!hooks.seen("createRuntime").exists());

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

    fs::write(hooks.seen("zz-bad.json"), "{ // comment\n}").unwrap();
    let error = run(&["--rm"], "three", &["/bin/true"]).failure();
    let expected =
        format!("oci-hooks: {}", hooks.seen("zz-bad.json:1:3: comment in JSON").display());
    assert!(error.contains(&expected), "{error}");
}
