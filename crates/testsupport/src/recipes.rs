//! The images of `contrib/images`, built by buildah from base images of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::images::TestImage;
use super::program;

/// Names of the base image and of the built image.
const BASE: &str = "localhost/base:1";
const BUILT: &str = "localhost/built:1";

/// buildah storage of one test.
pub struct BuildahStorage {
    dir: TempDir,
}

impl BuildahStorage {
    #[expect(clippy::new_without_default, reason = "it is made on the machine")]
    pub fn new() -> Self {
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

    /// Configures a buildah command to use this storage, and isolation that works on any machine.
    pub fn configure<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("CONTAINERS_STORAGE_CONF", self.dir.path().join("storage.conf"));
        command.env("BUILDAH_ISOLATION", "chroot")
    }

    fn call(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(program::find("buildah"));
        command.args(arguments);
        program::run(self.configure(&mut command)).success().trim_end().to_owned()
    }

    /// Creates the base image from a directory.
    pub fn base_of_directory(&self, root: &Path) {
        let container = self.call(&["from", "scratch"]);
        self.call(&["copy", &container, root.to_str().expect("the path is UTF-8"), "/"]);
        self.call(&["commit", "--rm", &container, BASE]);
    }

    /// Creates the base image from an image of the tests.
    pub fn base(&self, image: &TestImage) {
        let layout = self.dir.path().join("base");
        image.write_layout(&layout);
        // buildah derives an image name from the path, so the path must be a valid name.
        let mut pull = Command::new(program::find("buildah"));
        pull.args(["pull", "oci:base"]).current_dir(self.dir.path());
        let id = program::run(self.configure(&mut pull)).success().trim_end().to_owned();
        self.call(&["tag", &id, BASE]);
        fs::remove_dir_all(layout).expect("the directory is this test's");
    }

    /// Builds an image with a program, as users do with `contrib/images/build`.
    pub fn build(&self, name: &str, program: &Path) {
        let mut command = Command::new(program::repository("contrib/images/build"));
        command.args([name, "--base", BASE, "--tag", BUILT, "--programs"]);
        command.arg(program.parent().expect("a program is in a directory"));
        command.args(["--", "--pull-never"]).env("SOURCE_DATE_EPOCH", "1700000000");
        program::run(self.configure(&mut command)).success();
    }

    /// Mounts a container of the built image, and returns its root file system.
    pub fn mount(&self) -> PathBuf {
        let container = self.call(&["from", "--pull-never", BUILT]);
        self.call(&["mount", &container]).into()
    }

    /// Returns the configuration of the built image.
    pub fn configuration(&self) -> serde_json::Value {
        let text = self.call(&["inspect", "--type", "image", BUILT]);
        let image: serde_json::Value = serde_json::from_str(&text).expect("buildah prints JSON");
        image["OCIv1"].clone()
    }

    /// Returns the digest of the built image.
    pub fn digest(&self) -> String {
        self.call(&["inspect", "--type", "image", "--format", "{{.FromImageDigest}}", BUILT])
    }

    /// Returns a command that pushes the built image to a registry without TLS.
    pub fn push(&self, target: &str) -> Command {
        let mut command = Command::new(program::find("buildah"));
        command.args(["push", "--tls-verify=false", "--disable-compression", BUILT]);
        command.arg(format!("docker://{target}"));
        self.configure(&mut command);
        command
    }
}
