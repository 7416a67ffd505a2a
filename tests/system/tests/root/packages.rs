//! The packages of a release in a freshly installed Debian 12, and in an empty root: installed, used,
//! upgraded, removed. As root.

mod archive;
mod install;
mod units;
mod upgrade;

use oci_hooks_testsupport::debian_root::DebianRoot;
use oci_hooks_testsupport::program::{self, FinishedCommand};

/// Runs a bash script as root, and not with `DebianRoot::run`, because systemd would replace its variables.
fn as_root(root: &DebianRoot, script: &str) -> FinishedCommand {
    program::run(root.command("bash").args(["-c", script]))
}

/// Runs a bash script as an ordinary user.
fn as_user(root: &DebianRoot, script: &str) -> FinishedCommand {
    program::run(root.command("runuser").args(["-u", "runner", "--", "bash", "-c", script]))
}
