//! `oci-hooks explain NAME` with real engines.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::containerd::PrivateContainerd;
use oci_hooks_testsupport::dockerd::Dockerd;
use oci_hooks_testsupport::podman::{self, IMAGE, TestPodman};
use oci_hooks_testsupport::{program, rootfs};
use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;

/// Returns a directory with a hook for all containers, and one for no container.
fn hooks() -> HooksDir {
    let hooks = HooksDir::new();
    hooks.hook("10-all.json", "cat >/dev/null", json!({"always": true}), &["createRuntime"]);
    hooks.hook("20-none.json", "exit 1", json!({"commands": ["^nothing$"]}), &["createRuntime"]);
    hooks
}

/// Runs `explain` for a container, with programs of this directory before others.
pub(crate) fn explain(
    name: &str,
    hooks: &Path,
    bin: Option<PathBuf>,
    host: Option<String>,
) -> Value {
    let mut explain = Command::new(program::built_program("oci-hooks"));
    explain.args(["explain", name, "--format", "json", "--hooks-dir"]).arg(hooks);
    let usual = env::var_os("PATH").unwrap_or_default();
    let path = bin.into_iter().chain(env::split_paths(&usual));
    let path: OsString = env::join_paths(path).unwrap();
    explain.env("PATH", path).envs(host.map(|host| ("DOCKER_HOST", host)));
    serde_json::from_str(&program::run(&mut explain).stdout).unwrap()
}

/// Returns name and state of each hook file.
fn states(report: &Value) -> Vec<(&str, &str)> {
    let files = report["directories"][0]["files"].as_array().unwrap().iter();
    let hooks = files.filter(|file| file["state"] != "ignored");
    hooks.map(|file| (file["name"].as_str().unwrap(), file["state"].as_str().unwrap())).collect()
}

/// Returns the value and the source of a fact.
pub(crate) fn fact<'r>(report: &'r Value, name: &str) -> (&'r str, &'r str) {
    let facts = report["container"]["facts"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["fact"] == name).unwrap();
    (fact["value"].as_str().unwrap(), fact["source"].as_str().unwrap())
}

/// Asserts that the configuration has the hook of the file for all containers, and no hook of unknown origin.
#[track_caller]
fn assert_origin(report: &Value, hooks: &HooksDir) {
    let origins: Vec<_> =
        report["hooks"].as_array().unwrap().iter().map(|hook| &hook["origin"]).collect();
    let file = json!({"kind": "hook-file", "file": hooks.path().join("10-all.json")});
    assert!(origins.contains(&&file), "{origins:?}");
    assert!(origins.iter().all(|origin| origin["kind"] != "unknown"), "{origins:?}");
}

const MATCHED: [(&str, &str); 2] = [("10-all.json", "injected"), ("20-none.json", "not-matched")];

#[test]
fn containers_of_podman_are_explained_in_every_state() {
    let hooks = hooks();
    let podman = TestPodman::new(&program::find("runc"), &[hooks.path()]);
    hooks.hook("30-mounts.json", "exit 0", json!({"hasBindMounts": true}), &["createRuntime"]);
    let names = [(); 4].map(|()| program::unique_name());
    let mount = ["--volume", "/etc/hosts:/etc/hosts"];
    let create = |name: &str, options: &[&str]| {
        let create = ["create", "--name", name, "--network", "none"];
        podman.call(&[&create[..], options, &[IMAGE, "/bin/true"]].concat()).success();
    };
    create(&names[0], &mount);
    podman.run(&["--name", &names[1], mount[0], mount[1]], &["/bin/true"]).success();
    podman
        .run(&["--name", &names[2], "--detach", mount[0], mount[1]], &["/bin/sleep", "1000"])
        .success();
    for (name, state) in names.iter().zip(["created", "exited", "running"]) {
        let report = explain(name, hooks.path(), Some(podman.bin()), None);
        assert_eq!(states(&report)[..2], MATCHED, "{name}");
        assert_eq!(states(&report)[2], ("30-mounts.json", "injected"), "{name}");
        assert_eq!(report["consumer"], podman::profile());
        let found = format!("podman {name}, {state}");
        assert_eq!(fact(&report, "container"), (found.as_str(), "podman container inspect"));
        let (path, source) = fact(&report, "config.json");
        if state == "created" {
            assert_eq!(
                (path, source),
                ("does not exist now", "guessed from podman container inspect")
            );
            assert_eq!(report["hooks"], json!([]));
        } else {
            assert!(Path::new(path).is_file(), "{path}");
            assert_origin(&report, &hooks);
            assert!(report["hooks"].to_string().contains("30-mounts.json"), "{report}");
        }
    }

    // Podman does not count the bind mounts of other containers. In doubt, a hook runs.
    podman.run(&["--name", &names[3], "--volumes-from", &names[2]], &["/bin/true"]).success();
    let report = explain(&names[3], hooks.path(), Some(podman.bin()), None);
    assert_eq!(states(&report)[2], ("30-mounts.json", "injected"));
    assert_eq!(report["target"]["unclear_mounts"], json!(["/etc/hosts"]));
    assert!(!report["hooks"].to_string().contains("30-mounts.json"), "{report}");
}

#[test]
fn containers_of_docker_are_explained_in_every_state() {
    let hooks = hooks();
    let runtime = hooks.runtime();
    hooks.hook("30-mounts.json", "exit 0", json!({"hasBindMounts": true}), &["createRuntime"]);
    hooks.hook("40-init.json", "exit 0", json!({"commands": ["docker-init$"]}), &["createRuntime"]);
    let docker = Dockerd::start(&json!({"hooked": {"path": runtime}}));
    let [created, running] = [(); 2].map(|()| program::unique_name());
    let options = ["--init", "--tmpfs", "/run"];
    let create = ["create", "--runtime", "hooked", "--network", "none", "--name", &created];
    docker.docker(&[&create[..], &options, &[IMAGE, "/bin/true"]].concat()).success();
    let detached = [&["--detach", "--name", &running][..], &options].concat();
    docker.run("hooked", &detached, &["/bin/sleep", "1000"]).success();
    for (name, state) in [(&created, "created"), (&running, "running")] {
        let report = explain(name, hooks.path(), None, Some(docker.host()));
        assert_eq!(states(&report)[..2], MATCHED, "{name}: {report}");
        let others = [("30-mounts.json", "injected"), ("40-init.json", "injected")];
        assert_eq!(states(&report)[2..], others, "{name}: {report}");
        let found = format!("docker {name}, {state}");
        assert_eq!(fact(&report, "container"), (found.as_str(), "docker container inspect"));
        let by = format!("the runtime {}, named by docker info", runtime.display());
        assert_eq!(fact(&report, "consumer"), ("podman", by.as_str()));
        if state == "running" {
            assert!(Path::new(fact(&report, "config.json").0).is_file(), "{report}");
            assert_origin(&report, &hooks);
        }
    }
}

#[test]
fn containers_of_containerd_are_explained_with_and_without_a_task() {
    let hooks = hooks();
    let runtime = hooks.runtime();
    let root = program::temporary_directory();
    rootfs::fill(root.path());
    let containerd = PrivateContainerd::start();
    let id = program::unique_name();
    let sleep = ["/bin/sleep", "1000"];
    containerd.run(&runtime, &["--detach"], root.path(), &id, &sleep).success();
    let report = explain(&id, hooks.path(), Some(containerd.bin()), None);
    assert_eq!(states(&report), MATCHED, "{report}");
    let found = format!("containerd default/{id}, running");
    assert_eq!(fact(&report, "container"), (found.as_str(), "ctr containers list"));
    let by = format!("the runtime {}, named by containerd", runtime.display());
    assert_eq!(fact(&report, "consumer"), ("podman", by.as_str()));
    assert_origin(&report, &hooks);

    containerd.ctr(&["tasks", "delete", "--force", &id]).success();
    let report = explain(&id, hooks.path(), Some(containerd.bin()), None);
    assert_eq!(states(&report), MATCHED, "{report}");
    assert_eq!(fact(&report, "consumer"), ("podman", by.as_str()));
    assert_eq!(fact(&report, "config.json"), ("does not exist now", "ctr containers info"));
    assert_eq!(report["target"]["command"], "/bin/sleep");
}

#[test]
fn proof_runs_a_hook_with_podman() {
    let hooks = hooks();
    let podman = TestPodman::new(&program::find("runc"), &[hooks.path()]);
    let settings = hooks.output_path("containers.conf");
    std::fs::write(&settings, format!("[engine]\nhooks_dir = [{:?}]\n", hooks.path())).unwrap();
    let mut doctor = Command::new(program::built_program("oci-hooks"));
    doctor.args(["doctor", "--prove", "--format", "json"]).env("CONTAINERS_CONF", settings);
    doctor.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", podman.bin().display()));
    let report = program::run(&mut doctor).stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let proof = checks.iter().find(|check| check["name"] == "podman --prove").unwrap();
    assert_eq!(proof["status"], "ok", "{proof}");
    assert_eq!(podman.call(&["ps", "--all", "--quiet"]).success(), "");
    let names = std::fs::read_dir(hooks.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}
