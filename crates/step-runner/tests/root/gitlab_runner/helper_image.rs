//! The helper images of `contrib/images`, built by buildah.

use std::fs;
use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::recipes::BuildahStorage;
use oci_hooks_testsupport::{program, static_program};

use crate::gitlab_runner::images::{fill_helper, root_command};

/// Runs the helper of an image.
fn call(root: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = root_command(root);
    command.arg("/usr/bin/gitlab-runner-helper").args(words);
    let done = program::run(&mut command);
    (done.status.code(), done.stdout + &done.stderr)
}

#[test]
fn helper_image_contains_our_program_beside_gitlabs() {
    let buildah = BuildahStorage::new();
    let base = program::temporary_directory();
    fill_helper(base.path());
    buildah.base_of_directory(base.path());
    buildah.build("gitlab-helper", &static_program::program("step-runner"));
    let root = buildah.mount();
    let (code, out) = call(&root, &["--version"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("Version:      19.4.0\n") && out.contains("\nStep runner:  "), "{out}");
    let (code, out) = call(&root, &["artifacts-uploader", "--id", "1"]);
    assert_eq!((code, &*out), (Some(7), "original: artifacts-uploader --id 1\n"));
    let (code, out) = call(&root, &["steps", "bootstrap", "/tmp/new/gitlab-runner-helper"]);
    assert_eq!((code, &*out), (Some(0), ""));
    let mut names: Vec<_> = fs::read_dir(root.join("tmp/new"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["ca-certs.pem", "git", "gitlab-runner-helper", "gitlab-runner-helper.gitlab"]
    );
}

#[test]
fn scratch_image_copies_itself() {
    let buildah = BuildahStorage::new();
    let program = static_program::program("step-runner");
    buildah.build("gitlab-helper-scratch", &program);
    let first = buildah.digest();
    let labels = buildah.configuration()["config"]["Labels"].clone();
    for (label, value) in [
        ("source", env!("CARGO_PKG_REPOSITORY")),
        ("licenses", env!("CARGO_PKG_LICENSE")),
        ("version", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(labels[format!("org.opencontainers.image.{label}")], value, "{labels}");
    }
    buildah.build("gitlab-helper-scratch", &program);
    assert_eq!(buildah.digest(), first, "the same input makes the same image");
    let root = buildah.mount();
    let (code, out) = call(&root, &["steps", "bootstrap", "/volume/gitlab-runner-helper"]);
    assert_eq!((code, &*out), (Some(0), ""));
    let names: Vec<_> = fs::read_dir(root.join("volume"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["gitlab-runner-helper"]);
    let (code, out) = call(&root, &["cache-init", "/builds"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("/usr/bin/gitlab-runner-helper.gitlab"), "{out}");
}

#[test]
fn programs_that_cannot_run_in_an_image_are_rejected() {
    let linked = program::temporary_directory();
    program::copy_program(&program::find("true"), &linked.path().join("step-runner"));
    for (words, expected) in [
        (
            &["gitlab-helper-scratch", "--programs", linked.path().to_str().unwrap()][..],
            "linked dynamically",
        ),
        (
            &["gitlab-helper-scratch", "--programs", "/nowhere"],
            "no program step-runner in /nowhere",
        ),
        (
            &["runner"],
            "unknown image \"runner\": expected one of arc-runner garm-runner gitlab-helper",
        ),
        (&[], "no image named"),
        (&["arc-runner", "--tag"], "--tag needs a value"),
    ] {
        let ended =
            program::run(Command::new(program::repository("contrib/images/build")).args(words));
        assert_eq!(ended.status.code(), Some(2), "{words:?}");
        let said = ended.failure();
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}
