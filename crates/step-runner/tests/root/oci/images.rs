//! Accepted images and files, and the logins used to pull them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::images::LayerArchive;
use oci_hooks_testsupport::program;
use step_runner::document::StepAction;
use step_runner::resolve::{LoadedStep, ResolveError};

use crate::oci::setup::{PASSWORD, RegistrySetup, step};

/// Returns the output of a step.
fn step_output(loaded: &LoadedStep) -> &str {
    let StepAction::Exec(exec) = &loaded.file.definition.action else { panic!("it is a command") };
    &exec.command[1]
}

#[test]
fn step_in_an_image_is_pulled_with_the_logins_of_the_job() {
    let setup = RegistrySetup::new();
    setup.push(
        "1",
        &[
            &|tree: &mut LayerArchive| {
                tree.file("deep/down/step.yml", 0o644, step("below"));
                tree.file("deep/down/gone.yml", 0o644, step("gone"));
                tree.file("deep/opaque/step.yml", 0o644, step("gone"));
            },
            &|tree: &mut LayerArchive| {
                tree.file("func.yml", 0o644, step("top"));
                tree.file("deep/down/step.yml", 0o644, step("above"));
                tree.file("deep/down/other.yml", 0o600, step("other"));
                tree.file("deep/down/.wh.gone.yml", 0o644, "");
                tree.file("deep/opaque/.wh..wh..opq", 0o644, "");
            },
        ],
    );
    let logins = [setup.ci_login(), setup.docker_login(PASSWORD)];
    let reference = setup.reference("1", "deep/down");
    for wrong in [BTreeMap::new(), setup.docker_login("wrong-password")] {
        let error = setup.load(&reference, &wrong).unwrap_err().to_string();
        assert!(error.contains("steps/test:1"), "{error}");
        assert!(!error.contains("wrong-password"), "{error}");
    }
    for login in &logins {
        assert_eq!(step_output(&setup.load(&reference, login).unwrap()), "above");
    }
    let load = |path| setup.load(&setup.reference("1", path), &logins[0]);
    assert_eq!(step_output(&load("").unwrap()), "top");
    assert_eq!(step_output(&load("deep/down/other.yml").unwrap()), "other");
    for missing in ["deep/down/gone.yml", "deep/opaque", "nowhere", "deep/down/step.yml/x"] {
        assert!(matches!(load(missing), Err(ResolveError::Read { .. })), "{missing}");
    }
    // An image in the cache still requires the login.
    assert!(setup.load(&reference, &BTreeMap::new()).is_err());
}

#[test]
fn moved_tag_is_detected_and_nothing_is_copied_twice() {
    let setup = RegistrySetup::new();
    let login = setup.ci_login();
    let reference = setup.reference("latest", "sub");
    let load = || setup.load(&reference, &login).unwrap();
    let inode = |dir: &Path| fs::metadata(dir.join("step.yml")).unwrap().ino();
    setup.push(
        "latest",
        &[&|tree: &mut LayerArchive| tree.file("sub/step.yml", 0o644, step("one"))],
    );
    let one = load();
    let (dir, first) = (one.dir.clone(), inode(&one.dir));
    assert_eq!(step_output(&one), "one");
    let again = load();
    assert_eq!((again.dir, inode(&dir)), (dir.clone(), first));

    setup.push(
        "latest",
        &[&|tree: &mut LayerArchive| tree.file("sub/step.yml", 0o644, step("two"))],
    );
    let two = load();
    assert_eq!(step_output(&two), "two");
    // The old version is kept for running jobs.
    assert_ne!(two.dir, dir);
    assert_eq!(inode(&dir), first);
}

#[test]
fn paths_stay_within_the_image() {
    let setup = RegistrySetup::new();
    let outside = setup.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("step.yml"), step("outside")).unwrap();
    let outside = outside.to_str().unwrap().to_owned();
    setup.push(
        "1",
        &[&|tree: &mut LayerArchive| {
            tree.file("sub/step.yml", 0o644, step("inside"));
            tree.link("within", "sub");
            tree.link("absolute", &outside);
            tree.link("up", "../../../..");
            tree.link("file/step.yml", &format!("{outside}/step.yml"));
            tree.link("inner/step.yml", "../sub/step.yml");
        }],
    );
    let load = |path: &str| setup.load(&setup.reference("1", path), &setup.ci_login());
    for inside in ["sub", "./sub", "within", "inner"] {
        assert_eq!(step_output(&load(inside).unwrap()), "inside", "{inside}");
    }
    for path in ["sub/../sub", "..", "absolute", "up", "up/outside", "file", "file/step.yml"] {
        let error = load(path).expect_err(path);
        assert!(matches!(error, ResolveError::Outside(_)), "{path}: {error}");
    }
}

#[test]
fn step_of_an_image_cannot_call_steps_of_the_host() {
    let setup = RegistrySetup::new();
    let outside = setup.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("step.yml"), step("outside")).unwrap();
    let up = "../".repeat(20);
    let of_host = format!("{up}{}", outside.strip_prefix("/").unwrap().display());
    let calls =
        |reference: &str| format!("spec: {{}}\n---\nrun: [{{name: a, step: {reference}}}]\n");
    setup.push(
        "1",
        &[&|tree: &mut LayerArchive| {
            tree.file("inner/step.yml", 0o644, step("inside"));
            tree.file("beside/step.yml", 0o644, calls("../inner"));
            tree.file("twice/step.yml", 0o644, calls("../beside"));
            tree.file("leaving/step.yml", 0o644, calls(&of_host));
            tree.file("later/step.yml", 0o644, calls("../leaving"));
            tree.link("link", outside.to_str().unwrap());
            tree.file("linked/step.yml", 0o644, calls("../link"));
        }],
    );
    let run = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(["run", "-C"]).arg(setup.dir.path());
        for (name, value) in setup.ci_login() {
            command.arg("--var").arg(format!("{name}={value}"));
        }
        command.arg(format!("{}/steps/test:1 {path}", setup.registry.address()));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", setup.dir.path());
        program::run(&mut command)
    };
    for inside in ["beside", "twice"] {
        let out = run(inside).success();
        assert!(out.ends_with("inside\n"), "{inside}: {out}");
    }
    for leaving in ["leaving", "later", "linked"] {
        let error = run(leaving).failure();
        assert!(error.contains("leads out of"), "{leaving}: {error}");
    }
}
