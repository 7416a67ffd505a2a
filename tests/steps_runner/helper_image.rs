//! The recipes of helper images in `contrib/gitlab`, built by buildah.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::images::{fill_helper, in_root};
use crate::support::{program, static_program};

/// Storage of buildah's for one test.
struct Buildah {
    dir: TempDir,
}

impl Buildah {
    fn new() -> Self {
        program::require_root();
        Buildah { dir: program::temporary_directory() }
    }

    fn call(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(program::find("buildah"));
        let storage = |name: &str| self.dir.path().join("storage").join(name);
        command.arg("--root").arg(storage("root")).arg("--runroot").arg(storage("run"));
        command.args(["--storage-driver", "vfs"]).args(arguments);
        program::run(&mut command).success().trim_end().to_owned()
    }

    /// Makes an image of a directory, as GitLab's helper image.
    fn base(&self) {
        let root = self.dir.path().join("base");
        fs::create_dir(&root).unwrap();
        fill_helper(&root);
        let container = self.call(&["from", "scratch"]);
        self.call(&["copy", &container, root.to_str().unwrap(), "/"]);
        self.call(&["commit", &container, "localhost/helper"]);
    }

    /// Builds a recipe of `contrib/gitlab`, and returns the root file system that comes of it.
    fn build(&self, file: &str) -> PathBuf {
        let context = self.dir.path().join("context");
        fs::create_dir_all(&context).unwrap();
        let recipe = context.join(file);
        fs::copy(program::repository("contrib/gitlab").join(file), &recipe).unwrap();
        fs::copy(static_program::step_runner(), context.join("step-runner")).unwrap();
        let (recipe, path) = (recipe.to_str().unwrap(), context.to_str().unwrap());
        let options = ["bud", "--isolation", "chroot", "--pull-never", "--file", recipe];
        let base = ["--build-arg", "HELPER=localhost/helper", "--tag", "localhost/ours", path];
        self.call(&[&options[..], &base].concat());
        let container = self.call(&["from", "--pull-never", "localhost/ours"]);
        self.call(&["mount", &container]).into()
    }
}

/// Calls the helper of an image.
fn call(root: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = in_root(root);
    command.arg("/usr/bin/gitlab-runner-helper").args(words);
    let done = program::run(&mut command);
    (done.status.code(), done.stdout + &done.stderr)
}

#[test]
fn the_helper_image_has_our_program_and_gitlabs_beside_it() {
    let buildah = Buildah::new();
    buildah.base();
    let root = buildah.build("Containerfile");
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
fn an_image_with_nothing_else_copies_itself() {
    let buildah = Buildah::new();
    let root = buildah.build("Containerfile.scratch");
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
