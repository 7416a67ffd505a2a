//! Podman with separate storage, and one image made from busybox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::cgroup::CgroupParent;
use super::program::{self, FinishedCommand};
use super::rootfs;

/// Image in the storage of every engine under test.
pub const IMAGE: &str = "localhost/busybox";

/// A podman whose containers, images and files are removed on drop.
pub struct TestPodman {
    cgroup_parent: CgroupParent,
    directory: TempDir,
}

impl TestPodman {
    /// Sets up a podman that uses `runtime` and reads hooks from `hooks_dirs`.
    pub fn new(runtime: &Path, hooks_dirs: &[&Path]) -> Self {
        program::require_root();
        let directory = program::temporary_directory();
        // By default all podmans share the machine's shared-memory segment of locks.
        // Podman's default limits may exceed those of this process, which containers cannot raise.
        let settings = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\nlock_type = \"file\"\n[network]\nnetwork_config_dir = {:?}\n",
            directory.path().join("networks")
        );
        fs::write(directory.path().join("containers.conf"), settings)
            .expect("the directory is ours");
        write_caller(&with_root(runtime, directory.path()), hooks_dirs, directory.path());
        let podman = Self { cgroup_parent: CgroupParent::new(), directory };
        let image = podman.directory.path().join("image.tar");
        rootfs::write_tar(&image);
        podman.call(&["import", image.to_str().expect("a plain name"), IMAGE]).success();
        podman
    }

    /// Returns the directory of a program `podman` that calls this podman.
    pub fn bin(&self) -> PathBuf {
        self.directory.path().join("bin")
    }

    /// Runs `podman ARGUMENTS…`.
    #[track_caller]
    pub fn call(&self, arguments: &[&str]) -> FinishedCommand {
        program::run(Command::new(self.bin().join("podman")).args(arguments))
    }

    /// Runs `podman run OPTIONS… IMAGE COMMAND…` without a network.
    #[track_caller]
    pub fn run(&self, options: &[&str], command: &[&str]) -> FinishedCommand {
        let mut arguments = vec!["run", "--network", "none"];
        arguments.extend(["--cgroup-parent", self.cgroup_parent.name()]);
        arguments.extend(options);
        arguments.push(IMAGE);
        arguments.extend(command);
        self.call(&arguments)
    }

    /// Returns the `config.json` that podman passed to the runtime.
    #[track_caller]
    pub fn config(&self, container: &str) -> Value {
        let path = self.call(&["inspect", "--format", "{{.OCIConfigPath}}", container]).success();
        let text = fs::read(path.trim()).expect("podman wrote a config.json");
        serde_json::from_slice(&text).expect("config.json is JSON")
    }
}

impl Drop for TestPodman {
    fn drop(&mut self) {
        // The directory is removed even if this fails.
        let _ = self.call(&["rm", "--all", "--force", "--time", "0"]);
    }
}

/// Writes a program that calls podman with the global options that separate it from the machine's podman.
fn write_caller(runtime: &Path, hooks_dirs: &[&Path], directory: &Path) {
    let hooks_dirs = hooks_dirs.iter().map(|dir| format!(" --hooks-dir '{}'", dir.display()));
    let script = format!(
        "#!/bin/sh\nexport CONTAINERS_CONF='{0}/containers.conf'\n\
         exec {podman} --root '{0}/root' --runroot '{0}/run' --tmpdir '{0}/tmp' \
         --storage-driver vfs --events-backend file --cgroup-manager cgroupfs \
         --runtime '{1}'{2} \"$@\"\n",
        directory.display(),
        runtime.display(),
        hooks_dirs.collect::<String>(),
        podman = program::find("podman").display(),
    );
    fs::create_dir(directory.join("bin")).expect("the directory is ours");
    program::write_program(&directory.join("bin/podman"), &script);
}

/// Returns the consumer profile of the installed podman.
#[track_caller]
pub fn profile() -> &'static str {
    profile_of(&program::find("podman"))
}

/// Returns the consumer profile of a podman.
#[track_caller]
pub fn profile_of(podman: &Path) -> &'static str {
    let version = program::run(Command::new(podman).arg("--version")).success();
    let number = version.trim().rsplit(' ').next().and_then(|number| number.split_once('.'));
    let (major, _) = number.unwrap_or_else(|| panic!("no version of podman: {version:?}"));
    let major: u32 = major.parse().expect("a version is a number");
    match major {
        0..=4 => "podman-4",
        5 => "podman-5",
        _ => "podman",
    }
}

/// Writes a wrapper that calls a runtime with its `--root` below a directory. Podman's own option for runtime
/// flags is not passed on to the process that cleans up after a container.
fn with_root(runtime: &Path, directory: &Path) -> PathBuf {
    // Podman identifies runtimes by their file name.
    let path = directory.join(runtime.file_name().expect("a runtime is a file"));
    let root = directory.join("containers");
    let script =
        format!("#!/bin/sh\nexec {} --root {} \"$@\"\n", runtime.display(), root.display());
    program::write_program(&path, &script);
    path
}
