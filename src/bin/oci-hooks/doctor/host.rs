//! The machine that is looked at.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks::hooks::directories::System;
use oci_hooks::program::check::Check;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::SystemRoot;
use oci_hooks::sys::process::{End, Program};

/// Where programs are looked for besides `PATH`: that of users lacks those of administrators.
const DIRS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The largest configuration file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// How an error ends that root would not see.
const PERMISSION_DENIED: &str = "Permission denied (os error 13)";

/// How long a program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// This machine, or a system that is mounted somewhere.
pub struct Host {
    pub root: SystemRoot,
    user_id: u32,
}

impl Host {
    /// Returns this machine, with the variables and rights of who runs this program.
    pub fn this() -> Self {
        Host { root: SystemRoot::host(), user_id: rustix::process::geteuid().as_raw() }
    }

    /// Returns a system that is mounted, as root sees it who has no variables.
    pub fn mounted_at(dir: &Path) -> Self {
        Host { root: SystemRoot::mounted_at(dir), user_id: 0 }
    }

    /// Returns a variable; those of this process are none of a mounted system's.
    fn variable(&self, name: &str) -> Option<OsString> {
        env::var_os(name).filter(|_| self.root.is_host())
    }

    /// Calls a function with what decides on the configuration of consumers.
    pub fn system<T>(&self, call: impl FnOnce(&System<'_>) -> T) -> T {
        let variable = |name: &str| self.variable(name);
        call(&System { root: self.root.clone(), user_id: self.user_id, variable: &variable })
    }

    pub fn is_rootless(&self) -> bool {
        self.user_id != 0
    }

    /// Returns the directory of the user's configuration files.
    pub fn user_config(&self) -> Option<PathBuf> {
        let config = self.variable("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty());
        let home = || self.variable("HOME").map(|home| Path::new(&home).join(".config"));
        config.map(PathBuf::from).or_else(home)
    }

    /// Finds a program.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.variable("PATH").unwrap_or_default();
        let mut dirs = env::split_paths(&path).chain(env::split_paths(OsStr::new(DIRS)));
        dirs.find_map(|dir| {
            let program = dir.join(name);
            (dir.is_absolute() && self.root.is_program(&program)).then_some(program)
        })
    }

    /// Returns the major and minor version of a program, if it prints one. What is in a mounted system is
    /// not run.
    pub fn version(&self, program: &Path) -> Option<(u64, u64)> {
        if !self.root.is_host() {
            return None;
        }
        let mut call = Program::new(program, Path::new("/"));
        call.argv = vec![program.as_os_str(), OsStr::new("--version")];
        let env: Vec<_> = env::vars_os().collect();
        call.env = env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect();
        call.timeout = Some(VERSION_TIMEOUT);
        let finished = call.run().ok().filter(|finished| finished.end == End::Exited(0))?;
        version_in(&String::from_utf8_lossy(&finished.stdout))
    }

    /// Returns the check of a daemon whose configuration cannot be read.
    pub fn unreadable(&self, name: &'static str, daemon: &str, found: String) -> Check {
        let hint = match self.is_rootless() && found.ends_with(PERMISSION_DENIED) {
            true => "run it as root".to_owned(),
            false => format!("fix it: {daemon} does not start with it"),
        };
        Check::fail(name, found, hint)
    }

    /// Reads a file, if there is one and it is text.
    pub fn read(&self, path: &Path) -> Result<Option<String>, String> {
        let seen = self.root.join(path);
        let text = self.root.read(path, MAX_FILE_BYTES).map_err(|error| chain(&error))?;
        let text = text.map(String::from_utf8).transpose();
        text.map_err(|_| format!("{} is not UTF-8", seen.display()))
    }
}

/// Finds the first version in a text.
fn version_in(text: &str) -> Option<(u64, u64)> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
        let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?);
        let end = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
        Some((major, minor[..end].parse().ok()?))
    })
}

#[test]
fn versions_are_found_in_what_programs_print() {
    for (text, version) in [
        ("podman version 4.3.1\n", Some((4, 3))),
        ("Docker version 20.10.24+dfsg1, build 5d6db84\n", Some((20, 10))),
        (
            "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3",
            Some((1, 6)),
        ),
        ("containerd github.com/containerd/containerd/v2 v2.0.5 fb4c30d4", Some((2, 0))),
        ("buildkitd github.com/moby/buildkit v0.13.2 2afc050d57d1", Some((0, 13))),
        ("no version", None),
    ] {
        assert_eq!(version_in(text), version, "{text}");
    }
}
