//! hooks.d for Docker, through `oci-hooks-runtime`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use oci_hooks_testsupport::dockerd::Dockerd;
use serde_json::json;

use crate::hooks_dir::HooksDir;

/// Starts a Docker daemon with the wrapper and these hooks as the runtime `hooked`.
fn docker(hooks: &HooksDir) -> Dockerd {
    Dockerd::start(&json!({"hooked": {"path": hooks.runtime()}}))
}

#[test]
fn docker_runs_hooks_of_every_stage() {
    let hooks = HooksDir::new();
    let stages = ["createRuntime", "createContainer", "poststart", "poststop"];
    hooks.keep_states(&stages);
    hooks.hook("inside.json", "cat >/started", json!({"always": true}), &["startContainer"]);
    hooks.hook(
        "filter.json",
        "sed 's|\"HOSTNAME=|\"FROM_HOOK=1\",&|'",
        json!({"commands": ["/sh$"]}),
        &["precreate"],
    );
    let never = "touch \"$DIR/never\"";
    hooks.hook("other.json", never, json!({"commands": ["/bash$"]}), &["createRuntime"]);
    let docker = docker(&hooks);

    let script = "test -s /started && echo ran with $FROM_HOOK; exit 5";
    let ran = docker.run("hooked", &["--name", "one"], &["/bin/sh", "-c", script]);
    assert_eq!(ran.status.code(), Some(5), "{}", ran.stderr);
    assert_eq!(ran.stdout, "ran with 1\n");
    let id = docker.docker(&["inspect", "--format", "{{.Id}}", "one"]).success();
    docker.docker(&["rm", "one"]).success();
    for stage in stages {
        assert_eq!(hooks.state(stage)["id"], id.trim(), "{stage}");
    }
    assert_eq!(hooks.state("poststop")["status"], "stopped");
    assert!(!hooks.output_path("never").exists());
}

/// Docker supports annotations since version 24.
#[test]
fn annotations_select_hooks_and_labels_do_not() {
    let hooks = HooksDir::new();
    let when = json!({"annotations": {"^com\\.example\\.a$": "^1$"}});
    hooks.hook("a.json", "cat >/dev/null; touch \"$DIR/fired\"", when, &["createRuntime"]);
    let docker = docker(&hooks);
    docker.run("hooked", &["--label", "com.example.a=1"], &["/bin/true"]).success();
    assert!(!hooks.output_path("fired").exists());

    let version = docker.docker(&["version", "--format", "{{.Server.Version}}"]).success();
    let major: u32 = version.split('.').next().unwrap().parse().expect("a version is a number");
    let ran = docker.run("hooked", &["--annotation", "com.example.a=1"], &["/bin/true"]);
    if major < 24 {
        assert!(ran.stderr.contains("unknown flag: --annotation"), "{}", ran.stderr);
        return;
    }
    ran.success();
    assert!(hooks.output_path("fired").exists());
}

#[test]
fn docker_works_like_without_the_wrapper() {
    let hooks = HooksDir::new();
    hooks.hook("a.json", "cat >/dev/null", json!({"always": true}), &["createRuntime"]);
    let docker = docker(&hooks);
    let call = |line: &str| docker.docker(&line.split(' ').collect::<Vec<_>>());

    docker.run("hooked", &["--name", "one", "--detach"], &["/bin/sleep", "1000"]).success();
    assert_eq!(call("exec one /bin/echo inside").success(), "inside\n");
    assert_eq!(call("exec one /bin/nothing").status.code(), Some(126));
    let exec = docker.docker(&["exec", "one", "/bin/sh", "-c", "exit 9"]);
    assert_eq!(exec.status.code(), Some(9));
    assert_eq!(call("ps --format {{.Names}}").success(), "one\n");
    assert!(call("top one").success().contains("sleep 1000"));
    assert_eq!(call("stats --no-stream --format {{.Name}}").success(), "one\n");
    call("pause one").success();
    call("unpause one").success();
    call("stop --time 0 one").success();
    assert_eq!(call("wait one").success(), "137\n");
    // Docker creates a new bundle.
    call("start one").success();
    call("kill --signal KILL one").success();
    assert_eq!(call("wait one").success(), "137\n");
    call("rm one").success();
    assert_eq!(call("ps --all --quiet").success(), "");

    let input = docker.run("hooked", &["--rm", "--interactive"], &["/bin/cat"]);
    assert_eq!(input.success(), "");
    let missing = docker.run("hooked", &["--rm"], &["/bin/nothing"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(missing.stderr.contains("no such file or directory"), "{}", missing.stderr);
}

#[test]
fn docker_shows_why_hooks_could_not_be_added() {
    let hooks = HooksDir::new();
    hooks.hook("a.json", "cat >/dev/null", json!({"always": true}), &["createRuntime"]);
    let docker = docker(&hooks);
    let bad = hooks.output_path("zz-bad.json");
    fs::write(&bad, "{ // comment\n}").unwrap();
    let said = |expected: &str| {
        let ran = docker.run("hooked", &["--rm"], &["/bin/true"]);
        // Docker's exit code for a container that could not be created.
        assert!(matches!(ran.status.code(), Some(125..=127)), "{}", ran.stderr);
        let lines: Vec<_> =
            ran.stderr.lines().filter(|line| line.contains("oci-hooks: ")).collect();
        assert_eq!(lines.len(), 1, "{}", ran.stderr);
        assert!(lines[0].contains(expected), "{}", ran.stderr);
    };
    said(&format!("oci-hooks: {}:1:3: comment in JSON", bad.display()));

    fs::remove_file(&bad).unwrap();
    fs::set_permissions(hooks.output_path("a.json"), fs::Permissions::from_mode(0o666)).unwrap();
    said("a.json is writable by everyone (mode 0666)");
    fs::set_permissions(hooks.output_path("a.json"), fs::Permissions::from_mode(0o644)).unwrap();
    docker.run("hooked", &["--rm"], &["/bin/true"]).success();

    let refuse = "cat >/dev/null; echo not on this host >&2; exit 1";
    hooks.hook("a.json", refuse, json!({"always": true}), &["createRuntime"]);
    let ran = docker.run("hooked", &["--rm"], &["/bin/true"]);
    assert!(ran.stderr.contains("not on this host"), "{}", ran.stderr);
}
