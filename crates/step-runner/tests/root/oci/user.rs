//! Steps in images, run by an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

use oci_hooks_testsupport::images::LayerArchive;
use oci_hooks_testsupport::program;

use crate::oci::setup::{RegistrySetup, step};

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

#[test]
fn ordinary_user_runs_a_step_of_an_image_owned_by_root() {
    program::require_root();
    let setup = RegistrySetup::new();
    setup.push(
        "1",
        &[
            &|tree: &mut LayerArchive| {
                tree.directory("step", 0o555);
                tree.file(
                    "step/step.yml",
                    0o400,
                    "spec: {}\n---\nexec: {command: ['${{step_dir}}/run']}\n",
                );
                tree.script("step/run", "#!/bin/sh\necho first\n");
                tree.file("step/unreadable", 0o000, "");
                tree.device("dev/null");
                tree.file("hidden/step.yml", 0o644, step("gone"));
                tree.file("gone/step.yml", 0o644, step("gone"));
            },
            &|tree: &mut LayerArchive| {
                tree.file("step/run", 0o6755, "#!/bin/sh\necho second\n");
                tree.file("hidden/.wh..wh..opq", 0o644, "");
                tree.file(".wh.gone", 0o644, "");
            },
        ],
    );
    let home = setup.dir.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(setup.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let bin = setup.dir.path().join("bin");
    let mut install = Command::new("install");
    program::run(install.args(["-D", PROGRAM]).arg(bin.join("step-runner"))).success();
    let run = |path: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(bin.join("step-runner")).args(["run", "-C"]).arg(&home);
        for (name, value) in setup.ci_login() {
            command.arg("--var").arg(format!("{name}={value}"));
        }
        command.arg(format!("{}/steps/test:1 {path}", setup.registry.address()));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &home);
        program::run(&mut command)
    };
    for _ in 0..2 {
        let out = run("step").success();
        assert!(out.ends_with("second\n"), "{out}");
    }
    for gone in ["hidden", "gone"] {
        let error = run(gone).failure();
        assert!(error.contains("no such file or directory"), "{error}");
    }
}
