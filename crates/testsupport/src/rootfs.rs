//! Root file systems and images made from busybox-static, without any registry.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::program;

/// Applets that tests use in a container.
const APPLETS: &[&str] = &[
    "cat", "date", "echo", "env", "false", "grep", "head", "id", "ls", "mkdir", "mkfifo", "rm",
    "sh", "sleep", "stat", "tail", "test", "touch", "true", "tty",
];

/// Fills an existing directory with a root file system: busybox and empty mount points.
///
/// The binary is copied, not linked, because a container may write to it.
pub fn fill(root: &Path) {
    for directory in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        fs::create_dir(root.join(directory)).expect("the root is empty");
    }
    fs::copy(program::find("busybox"), root.join("bin/busybox")).expect("busybox can be copied");
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).expect("the applet is listed once");
    }
}

/// Writes the same root file system as a tar archive, for `podman import` and `docker import`.
pub fn write_tar(path: &Path) {
    let root = program::temporary_directory();
    fill(root.path());
    program::run(Command::new("tar").arg("-C").arg(root.path()).arg("-cf").arg(path).args(["."]))
        .success();
}
