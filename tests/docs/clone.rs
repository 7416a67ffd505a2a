//! A clone of this repository in a Debian 12 that has Rust.
//!
//! The toolchain and the crates that cargo has downloaded are this machine's, because the system has no network. What
//! cargo compiles there is kept in `target/clone`, so that dependencies are compiled once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::debian_root::{DebianRoot, Mount};
use crate::support::{program, static_program};

/// Where the clone is: paths may have spaces.
pub(crate) const DIRECTORY: &str = "/home/runner/oci hooks";
/// Longer than it takes to compile all tests on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3600);
/// The user `runner`, to this machine.
const RUNNER: &str = "1000";

/// Returns what the system needs of this machine to compile.
pub(crate) fn mounts() -> [Mount; 4] {
    let bin = Path::new(env!("CARGO")).parent().expect("a program is in a directory");
    let sysroot = program::run(Command::new(bin.join("rustc")).args(["--print", "sysroot"]));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("clone");
    let mut install = Command::new("install");
    install.args(["--directory", "--owner", RUNNER, "--group", RUNNER]).arg(&target);
    program::run(&mut install).success();
    let registry = cargo_home().join("registry");
    let read = |from: PathBuf, to| Mount { from, to, is_writable: false };
    [
        read(PathBuf::from(sysroot.success().trim_end()), "/opt/rust"),
        read(registry.join("cache"), "/home/runner/.cargo/registry/cache"),
        read(registry.join("index"), "/home/runner/.cargo/registry/index"),
        Mount { from: target, to: "/home/runner/oci hooks/target", is_writable: true },
    ]
}

/// Returns the directory of cargo where this program was compiled: who runs it may be root, by sudo.
fn cargo_home() -> PathBuf {
    option_env!("CARGO_HOME").map_or_else(|| Path::new(env!("HOME")).join(".cargo"), PathBuf::from)
}

/// Copies what `git clone` would, and what is not committed yet; and `step-runner`, which nothing on the page installs
/// in a minute.
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
