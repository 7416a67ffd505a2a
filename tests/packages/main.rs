//! The packages of a release in a Debian 12 that has just been installed, and in an empty root: installed, used,
//! upgraded, removed. As root.

#[path = "../support/mod.rs"]
mod support;

mod archive;
mod install;
mod units;
mod upgrade;

use support::debian_root::DebianRoot;
use support::program::{self, Finished};

/// Runs a script with bash as root. `DebianRoot::run` would have systemd replace its variables.
fn as_root(root: &DebianRoot, script: &str) -> Finished {
    program::run(root.command("bash").args(["-c", script]))
}

/// Runs a script with bash as an ordinary user.
fn as_user(root: &DebianRoot, script: &str) -> Finished {
    program::run(root.command("runuser").args(["-u", "runner", "--", "bash", "-c", script]))
}
