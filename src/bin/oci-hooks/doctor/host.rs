//! The system to check.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks::hooks::directories::ConsumerSystem;
use oci_hooks_cli::check::HostCheck;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::SystemRoot;
use oci_hooks_files::process::{ChildProgram, OutputLimit, ProgramEnd};

/// Directories to search after those of `PATH`: the `PATH` of ordinary users lacks the `sbin` directories.
const DIRS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Size limit of a configuration file.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Endings of permission errors, as Rust and Go print them. Root would not get these errors.
const PERMISSION_DENIED: [&str; 2] = ["Permission denied (os error 13)", "permission denied"];

/// Time limit for a program to print its version or configuration.
const PRINT_TIMEOUT: Duration = Duration::from_secs(10);

/// This machine, or a mounted system.
pub struct DoctorHost {
    pub root: SystemRoot,
    user_id: u32,
}

impl DoctorHost {
    /// Returns this machine, with the environment and permissions of the user of this program.
    pub fn current() -> Self {
        DoctorHost { root: SystemRoot::host(), user_id: rustix::process::geteuid().as_raw() }
    }

    /// Returns a mounted system, as seen by root without environment variables.
    pub fn mounted_at(dir: &Path) -> Self {
        DoctorHost { root: SystemRoot::mounted_at(dir), user_id: 0 }
    }

    /// Returns an environment variable; `None` for a mounted system.
    fn variable(&self, name: &str) -> Option<OsString> {
        env::var_os(name).filter(|_| self.root.is_host())
    }

    /// Calls a function with the inputs that locate the configuration of consumers.
    pub fn system<T>(&self, call: impl FnOnce(&ConsumerSystem<'_>) -> T) -> T {
        let variable = |name: &str| self.variable(name);
        call(&ConsumerSystem {
            root: self.root.clone(),
            user_id: self.user_id,
            variable: &variable,
        })
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

    /// Returns whether a file exists; `None` if that is unknown, for example without permission.
    pub fn exists(&self, path: &Path) -> Option<bool> {
        self.root.exists(path).ok()
    }

    pub fn is_program(&self, program: &Path) -> bool {
        self.root.is_program(program)
    }

    /// Finds a program in `PATH` and the usual directories.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.variable("PATH").unwrap_or_default();
        let mut dirs = env::split_paths(&path).chain(env::split_paths(OsStr::new(DIRS)));
        dirs.find_map(|dir| {
            let program = dir.join(name);
            (dir.is_absolute() && self.is_program(&program)).then_some(program)
        })
    }

    /// Returns the major and minor version that a program prints, or the reason why there is none.
    pub fn version(&self, program: &Path) -> Result<(u64, u64), String> {
        let text = self.output(program, &["--version"]);
        let text =
            text.unwrap_or_else(|| Err("it cannot be run, or takes longer than 10 s".to_owned()))?;
        version_in(&text).ok_or_else(|| "its output has none".to_owned())
    }

    /// Returns the standard output of a program, or the last line of its standard error if it fails; `None` if the
    /// program cannot be run, is killed or takes too long. Programs of a mounted system are not run.
    pub fn output(&self, program: &Path, args: &[&str]) -> Option<Result<String, String>> {
        self.output_within(PRINT_TIMEOUT, None, program, args)
    }

    /// Does the same as `output` with another time limit. The program is killed once `interrupt` is readable.
    pub fn output_within(
        &self,
        timeout: Duration,
        interrupt: Option<BorrowedFd<'_>>,
        program: &Path,
        args: &[&str],
    ) -> Option<Result<String, String>> {
        if !self.root.is_host() {
            return None;
        }
        let mut call = ChildProgram::new(program, Path::new("/"));
        call.argv = vec![program.as_os_str()];
        call.argv.extend(args.iter().map(OsStr::new));
        let env: Vec<_> = env::vars_os().collect();
        call.env = env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect();
        call.timeout = Some(timeout);
        call.interrupt = interrupt;
        call.stdout = OutputLimit::Kill(MAX_FILE_BYTES);
        let finished = call.run().ok()?;
        match finished.end {
            ProgramEnd::Exited(0) => Some(Ok(String::from_utf8_lossy(&finished.stdout).into())),
            ProgramEnd::Exited(_) => {
                let errors = String::from_utf8_lossy(&finished.stderr);
                Some(Err(errors
                    .trim_end()
                    .lines()
                    .next_back()
                    .unwrap_or("it failed without an error message")
                    .to_owned()))
            }
            _ => None,
        }
    }

    /// Returns the check of a daemon whose configuration cannot be read.
    pub fn unreadable(&self, name: &'static str, daemon: &str, found: String) -> HostCheck {
        let is_denied = PERMISSION_DENIED.iter().any(|end| found.ends_with(end));
        let hint = match self.is_rootless() && is_denied {
            true => "run `oci-hooks doctor` as root".to_owned(),
            false => format!("correct this error: {daemon} does not work until then"),
        };
        HostCheck::fail(name, found, hint)
    }

    /// Reads a text file; `None` if it does not exist.
    pub fn read(&self, path: &Path) -> Result<Option<String>, String> {
        let seen = self.root.join(path);
        let text = self.root.read(path, MAX_FILE_BYTES).map_err(|error| chain(&error))?;
        let text = text.map(String::from_utf8).transpose();
        text.map_err(|_| format!("{} is not UTF-8", seen.display()))
    }
}

/// Finds the first version in a text.
pub fn version_in(text: &str) -> Option<(u64, u64)> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
        let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?);
        let end = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
        Some((major, minor[..end].parse().ok()?))
    })
}

#[test]
fn versions_are_found_in_program_output() {
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
