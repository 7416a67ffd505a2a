//! Podman with its own storage, and one image made from busybox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::cgroup::CgroupParent;
use super::program::{self, Finished};
use super::rootfs;

/// The image that every engine under test has.
pub(crate) const IMAGE: &str = "localhost/busybox";

/// A podman whose containers, images and files go away with the value.
pub(crate) struct Podman {
    runtime: PathBuf,
    hooks_dirs: Vec<PathBuf>,
    cgroup_parent: CgroupParent,
    directory: TempDir,
}

impl Podman {
    /// Sets up a podman that calls `runtime` and reads hooks from `hooks_dirs`.
    pub(crate) fn new(runtime: &Path, hooks_dirs: &[&Path]) -> Self {
        program::require_root();
        let directory = program::temporary_directory();
        // The locks of the machine's own podman are in one segment of shared memory for all.
        let settings = format!(
            "[engine]\nlock_type = \"file\"\n[network]\nnetwork_config_dir = {:?}\n",
            directory.path().join("networks")
        );
        fs::write(directory.path().join("containers.conf"), settings)
            .expect("the directory is ours");
        let podman = Self {
            runtime: with_root(runtime, directory.path()),
            hooks_dirs: hooks_dirs.iter().map(|path| path.to_path_buf()).collect(),
            cgroup_parent: CgroupParent::new(),
            directory,
        };
        let image = podman.directory.path().join("image.tar");
        rootfs::write_tar(&image);
        podman.call(&["import", image.to_str().expect("a plain name"), IMAGE]).success();
        podman
    }

    /// Calls `podman ARGUMENTS…` after the global options that separate it from the machine's own.
    #[track_caller]
    pub(crate) fn call(&self, arguments: &[&str]) -> Finished {
        let directory = self.directory.path();
        let mut command = Command::new(program::find("podman"));
        command
            .env("CONTAINERS_CONF", directory.join("containers.conf"))
            .arg("--root")
            .arg(directory.join("root"))
            .arg("--runroot")
            .arg(directory.join("run"))
            .arg("--tmpdir")
            .arg(directory.join("tmp"))
            .args(["--storage-driver", "vfs", "--events-backend", "file"])
            .args(["--cgroup-manager", "cgroupfs"])
            .arg("--runtime")
            .arg(&self.runtime);
        for hooks_dir in &self.hooks_dirs {
            command.arg("--hooks-dir").arg(hooks_dir);
        }
        program::run(command.args(arguments))
    }

    /// Calls `podman run OPTIONS… IMAGE COMMAND…` without a network.
    #[track_caller]
    pub(crate) fn run(&self, options: &[&str], command: &[&str]) -> Finished {
        let mut arguments = vec!["run", "--network", "none"];
        arguments.extend(["--cgroup-parent", self.cgroup_parent.name()]);
        // Podman's own defaults may be above what this process, and so a container, may have.
        arguments.extend(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        arguments.extend(options);
        arguments.push(IMAGE);
        arguments.extend(command);
        self.call(&arguments)
    }

    /// Returns the `config.json` that podman gave to the runtime.
    #[track_caller]
    pub(crate) fn config(&self, container: &str) -> Value {
        let path = self.call(&["inspect", "--format", "{{.OCIConfigPath}}", container]).success();
        let text = fs::read(path.trim()).expect("podman wrote a config.json");
        serde_json::from_slice(&text).expect("config.json is JSON")
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // The directory goes whether or not this works.
        let _ = self.call(&["rm", "--all", "--force", "--time", "0"]);
    }
}

/// Returns the consumer profile of the podman that is installed.
#[track_caller]
pub(crate) fn profile() -> &'static str {
    let version = program::run(Command::new(program::find("podman")).arg("--version")).success();
    let number = version.trim().rsplit(' ').next().and_then(|number| number.split_once('.'));
    let (major, _) = number.unwrap_or_else(|| panic!("no version of podman: {version:?}"));
    let major: u32 = major.parse().expect("a version is a number");
    if major < 5 { "podman-4" } else { "podman" }
}

/// Writes a program that calls a runtime with a root below a directory. Podman would be given the flag
/// for that, but the process that cleans up after a container does not hear of it.
fn with_root(runtime: &Path, directory: &Path) -> PathBuf {
    // Podman knows runtimes by their names.
    let path = directory.join(runtime.file_name().expect("a runtime is a file"));
    let root = directory.join("containers");
    let script =
        format!("#!/bin/sh\nexec {} --root {} \"$@\"\n", runtime.display(), root.display());
    program::write_program(&path, &script);
    path
}
