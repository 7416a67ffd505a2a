//! Root file systems of helper and build images.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::images::libraries;
use oci_hooks_testsupport::{program, rootfs, static_program};

/// A build image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildImage {
    /// Programs in Alpine's directories, without glibc.
    Busybox,
    /// Empty.
    Distroless,
    /// Bash and glibc, with the dynamic loader.
    Debian,
}

impl BuildImage {
    pub(crate) const ALL: [Self; 3] = [Self::Busybox, Self::Distroless, Self::Debian];

    pub(crate) fn has_shell(self) -> bool {
        self != BuildImage::Distroless
    }

    /// Fills a root file system in which the mount points exist.
    pub(crate) fn fill(self, root: &Path) {
        match self {
            BuildImage::Busybox | BuildImage::Debian => rootfs::fill(root),
            BuildImage::Distroless => {
                for name in ["dev", "etc", "proc", "sys", "tmp"] {
                    fs::create_dir(root.join(name)).unwrap();
                }
            }
        }
        if self == BuildImage::Debian {
            let bash = program::find("bash");
            for path in libraries(&bash).into_iter().chain([bash.clone()]) {
                let target = if path == bash { "/usr/bin/bash".into() } else { path.clone() };
                copy(&path, &inside(root, &target));
            }
        }
    }
}

/// Fills the root file system of GitLab's helper image: busybox, certificates, git, and a program that prints
/// its arguments.
pub(crate) fn fill_helper(root: &Path) {
    rootfs::fill(root);
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    let original = "#!/bin/sh\n[ \"$1\" != --version ] || { printf 'Version:      19.4.0\\nOS/Arch:      \
                    linux/amd64\\n'; exit 0; }\necho \"original: $*\"\nexit 7\n";
    let helper = root.join("usr/bin/gitlab-runner-helper");
    fs::write(&helper, original).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.join("ca-certs.pem"), "certificates\n").unwrap();
    fs::create_dir_all(root.join("git/libexec")).unwrap();
    fs::write(root.join("git/libexec/git"), "git\n").unwrap();
    symlink("libexec/git", root.join("git/git")).unwrap();
}

/// Fills the root file system of a helper image in which our program replaces GitLab's.
pub(crate) fn fill_our_helper(root: &Path) {
    fill_helper(root);
    let bin = root.join("usr/bin");
    fs::rename(bin.join("gitlab-runner-helper"), bin.join("gitlab-runner-helper.gitlab")).unwrap();
    program::copy_program(
        &static_program::program("step-runner"),
        &bin.join("gitlab-runner-helper"),
    );
}

/// Copies a file, following symlinks.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    program::run(Command::new("cp").arg("--dereference").arg(from).arg(to)).success();
}

/// Returns the host path of a file in a root file system.
pub(crate) fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns a command that executes its arguments in a root file system, with `/proc` mounted as in containers.
pub(crate) fn root_command(root: &Path) -> Command {
    let proc = root.join("proc");
    fs::create_dir_all(&proc).unwrap();
    let mut mount = OsString::from("--mount-proc=");
    mount.push(proc);
    let mut command = Command::new(program::find("unshare"));
    command.args(["--mount", "--pid", "--fork", "--kill-child"]).arg(mount);
    command.arg(program::find("chroot")).arg(root);
    command
}
