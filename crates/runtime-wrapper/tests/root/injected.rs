//! `oci-hooks explain NAME` states which hooks an engine injected.

use std::fs;

use oci_hooks_testsupport::containerd::PrivateContainerd;
use oci_hooks_testsupport::dockerd::Dockerd;
use oci_hooks_testsupport::hook_matrix::{ANNOTATIONS, HookMatrix};
use oci_hooks_testsupport::podman::TestPodman;
use oci_hooks_testsupport::{program, rootfs};
use serde_json::{Value, json};

use crate::explain::{explain, fact};
use crate::hooks_dir::HooksDir;

const SLEEP: &[&str] = &["/bin/sleep", "1000"];
const SHELL: &[&str] = &["/bin/sh", "-c", "exec sleep 1000"];

/// Options and commands of containers of podman.
const PODMAN: [(&[&str], &[&str]); 12] = [
    (&[], SLEEP),
    (&[], SHELL),
    (&["--entrypoint", "/bin/sleep"], &["1000"]),
    (&["--annotation", ANNOTATIONS[0]], SLEEP),
    (&["--annotation", ANNOTATIONS[0], "--annotation", ANNOTATIONS[1]], SHELL),
    (&["--label", ANNOTATIONS[0]], SLEEP),
    (&["--volume", "/usr/share:/data:ro"], SHELL),
    (&["--volume", "/data", "--annotation", ANNOTATIONS[0]], SLEEP),
    (&["--mount", "type=tmpfs,destination=/data"], SLEEP),
    (&["--read-only"], SLEEP),
    (&["--read-only", "--tmpfs", "/tmp"], SLEEP),
    (&["--privileged"], SLEEP),
];

#[test]
fn explain_states_what_podman_injects() {
    let hooks = HooksDir::new();
    let mut matrix = HookMatrix::new(hooks.path(), &["precreate", "poststop"]);
    let podman = TestPodman::new(&program::find("runc"), &[hooks.path()]);
    for (options, command) in PODMAN {
        let name = program::unique_name();
        podman.run(&[&["--detach", "--name", &name], options].concat(), command).success();
        let report = explain(&name, hooks.path(), Some(podman.bin()), None);
        let config = podman.config(&name);
        podman.call(&["rm", "--force", "--time", "0", &name]).success();
        matrix.compare(&options.join(" "), &report, &config);
    }
    println!("podman: {}", matrix.summary());
}

#[test]
fn explain_states_what_the_wrapper_injects_for_docker() {
    let hooks = HooksDir::new();
    let mut matrix = HookMatrix::new(hooks.path(), &["precreate"]);
    let docker = Dockerd::start(&json!({"hooked": {"path": hooks.runtime()}}));
    for (options, command) in [
        (&[][..], SLEEP),
        (&["--entrypoint", "/bin/sleep"], &["1000"]),
        (&["--label", ANNOTATIONS[0]], SLEEP),
        (&["--volume", "/usr/share:/data:ro"], SHELL),
        (&["--volume", "/data"], SLEEP),
        (&["--read-only", "--tmpfs", "/tmp"], SLEEP),
        (&["--mount", "type=tmpfs,destination=/data"], SHELL),
    ] {
        let name = program::unique_name();
        docker
            .run("hooked", &[&["--detach", "--name", &name], options].concat(), command)
            .success();
        let report = explain(&name, hooks.path(), None, Some(docker.host()));
        let config = read(fact(&report, "config.json").0);
        docker.docker(&["rm", "--force", &name]).success();
        matrix.compare(&options.join(" "), &report, &config);
    }
    println!("Docker: {}", matrix.summary());
}

#[test]
fn explain_states_what_the_wrapper_injects_for_containerd() {
    let hooks = HooksDir::new();
    let mut matrix = HookMatrix::new(hooks.path(), &["precreate"]);
    let runtime = hooks.runtime();
    let root = program::temporary_directory();
    rootfs::fill(root.path());
    fs::create_dir(root.path().join("data")).unwrap();
    let containerd = PrivateContainerd::start();
    for (options, command) in [
        (&[][..], SLEEP),
        (&["--annotation", ANNOTATIONS[0]], SLEEP),
        (&["--annotation", ANNOTATIONS[0], "--annotation", ANNOTATIONS[1]], SHELL),
        (&["--label", ANNOTATIONS[0], "--read-only"], SLEEP),
        (&["--mount", "type=bind,src=/usr/share,dst=/data,options=rbind:ro"], SHELL),
        (&["--mount", "type=tmpfs,src=tmpfs,dst=/data"], SLEEP),
    ] {
        let id = program::unique_name();
        let options = [&["--detach"], options].concat();
        containerd.run(&runtime, &options, root.path(), &id, command).success();
        let report = explain(&id, hooks.path(), Some(containerd.bin()), None);
        let config = read(fact(&report, "config.json").0);
        containerd.ctr(&["tasks", "delete", "--force", &id]).success();
        containerd.ctr(&["containers", "delete", &id]).success();
        matrix.compare(&options.join(" "), &report, &config);
    }
    println!("containerd with the wrapper: {}", matrix.summary());
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path.trim()).unwrap()).unwrap()
}
