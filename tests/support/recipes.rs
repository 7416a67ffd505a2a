//! The images of `contrib/images`, built by buildah from base images that are made here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::images::Image;
use super::program;

/// The name of the image to start from, and of what comes of it.
const BASE: &str = "localhost/base:1";
const BUILT: &str = "localhost/built:1";

/// Storage of buildah's for one test.
pub(crate) struct Buildah {
    dir: TempDir,
}

impl Buildah {
    pub(crate) fn new() -> Self {
        program::require_root();
        let dir = program::temporary_directory();
        let path = |name: &str| dir.path().join(name);
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n",
            path("graph"),
            path("run"),
        );
        fs::write(path("storage.conf"), storage).expect("the directory is new");
        Self { dir }
    }

    /// Makes a command use this storage, and nothing that this machine may lack.
    pub(crate) fn configure<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("CONTAINERS_STORAGE_CONF", self.dir.path().join("storage.conf"));
        command.env("BUILDAH_ISOLATION", "chroot")
    }

    fn call(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(program::find("buildah"));
        command.args(arguments);
        program::run(self.configure(&mut command)).success().trim_end().to_owned()
    }

    /// Makes the base image of a directory.
    pub(crate) fn base_of_directory(&self, root: &Path) {
        let container = self.call(&["from", "scratch"]);
        self.call(&["copy", &container, root.to_str().expect("the path is UTF-8"), "/"]);
        self.call(&["commit", "--rm", &container, BASE]);
    }

    /// Makes the base image of one of the tests' own.
    pub(crate) fn base(&self, image: &Image) {
        let layout = self.dir.path().join("base");
        image.write_layout(&layout);
        // buildah makes a name of the path, which has to be one.
        let mut pull = Command::new(program::find("buildah"));
        pull.args(["pull", "oci:base"]).current_dir(self.dir.path());
        let id = program::run(self.configure(&mut pull)).success().trim_end().to_owned();
        self.call(&["tag", &id, BASE]);
        fs::remove_dir_all(layout).expect("the directory is this test's");
    }

    /// Builds an image with a program in it, as `contrib/images/build` does it for users.
    pub(crate) fn build(&self, name: &str, program: &Path) {
        let mut command = Command::new(program::repository("contrib/images/build"));
        command.args([name, "--base", BASE, "--tag", BUILT, "--programs"]);
        command.arg(program.parent().expect("a program is in a directory"));
        command.args(["--", "--pull-never"]).env("SOURCE_DATE_EPOCH", "1700000000");
        program::run(self.configure(&mut command)).success();
    }

    /// Returns the root file system of what was built.
    pub(crate) fn mount(&self) -> PathBuf {
        let container = self.call(&["from", "--pull-never", BUILT]);
        self.call(&["mount", &container]).into()
    }

    /// Returns the configuration of what was built.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        let text = self.call(&["inspect", "--type", "image", BUILT]);
        let image: serde_json::Value = serde_json::from_str(&text).expect("buildah prints JSON");
        image["OCIv1"].clone()
    }

    /// Returns the digest of what was built.
    pub(crate) fn digest(&self) -> String {
        self.call(&["inspect", "--type", "image", "--format", "{{.FromImageDigest}}", BUILT])
    }

    /// Returns a command that pushes what was built to a registry without TLS.
    pub(crate) fn push(&self, target: &str) -> Command {
        let mut command = Command::new(program::find("buildah"));
        command.args(["push", "--tls-verify=false", "--disable-compression", BUILT]);
        command.arg(format!("docker://{target}"));
        self.configure(&mut command);
        command
    }
}
