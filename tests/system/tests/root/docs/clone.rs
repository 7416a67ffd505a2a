//! A clone of this repository in a Debian 12 with Rust.
//!
//! The toolchain and the downloaded crates are this machine's, because the system has no network. Cargo's
//! output is kept in `target/clone`, so that dependencies are compiled once.

use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::debian_root::{DebianRoot, RootMount};
use oci_hooks_testsupport::{program, static_program};

/// Directory of the clone, with a space to test such paths.
pub(crate) const DIRECTORY: &str = "/home/runner/oci hooks";
/// User id of `runner`.
const RUNNER: &str = "1000";

/// Returns the directories of this machine that the system needs to compile.
pub(crate) fn mounts() -> [RootMount; 4] {
    let bin = Path::new(env!("CARGO")).parent().expect("a program is in a directory");
    let sysroot = program::run(Command::new(bin.join("rustc")).args(["--print", "sysroot"]));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("clone");
    let mut install = Command::new("install");
    install.args(["--directory", "--owner", RUNNER, "--group", RUNNER]).arg(&target);
    program::run(&mut install).success();
    let registry = cargo_home().join("registry");
    let read = |from: PathBuf, to| RootMount { from, to, is_writable: false };
    [
        read(PathBuf::from(sysroot.success().trim_end()), "/opt/rust"),
        read(registry.join("cache"), "/home/runner/.cargo/registry/cache"),
        read(registry.join("index"), "/home/runner/.cargo/registry/index"),
        RootMount { from: target, to: "/home/runner/oci hooks/target", is_writable: true },
    ]
}

/// Returns the cargo home where this program was compiled, because with sudo the current user may be root.
fn cargo_home() -> PathBuf {
    option_env!("CARGO_HOME").map_or_else(|| Path::new(env!("HOME")).join(".cargo"), PathBuf::from)
}

/// Copies the files that `git clone` would, uncommitted changes, and `step-runner`, which no command on the
/// page installs within a minute.
pub(crate) fn copy_into(root: &DebianRoot) {
    let mut copy = Command::new("bash");
    copy.args(["-euo", "pipefail", "-c"]);
    copy.arg(
        "git -c safe.directory='*' -C \"$1\" ls-files -z --cached --others --exclude-standard |
            tar --create --directory \"$1\" --null --files-from - --ignore-failed-read |
            tar --extract --directory \"$2\"",
    );
    copy.args(["copy".as_ref(), program::repository("").as_os_str()]);
    program::run(copy.arg(root.path(DIRECTORY))).success();
    let mut give = root.command("find");
    give.args([DIRECTORY, "-xdev", "-exec", "chown", "runner:", "{}", "+"]);
    program::run(&mut give).success();
    root.copy_in(&static_program::program("step-runner"), "/usr/local/bin");
}
