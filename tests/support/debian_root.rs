//! A Debian 12 that has just been installed and booted, to install packages in and to work with as a reader of the
//! documentation does.
//!
//! It runs systemd, is in memory, has no network but loopback, and goes away with the value or with the test. Its
//! user `runner` has a home and ranges of ids; `apt-get install` finds what our packages depend on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use super::program::{self, Finished};

/// A directory of this machine that a system has too.
pub(crate) struct Mount {
    pub(crate) from: PathBuf,
    /// Where the system has it.
    pub(crate) to: &'static str,
    pub(crate) is_writable: bool,
}

impl Mount {
    fn line(&self) -> String {
        let mode = if self.is_writable { "rw" } else { "ro" };
        format!("{}:{}:{mode}\n", self.from.display(), self.to)
    }
}

/// A system that runs as long as the value is there.
pub(crate) struct DebianRoot {
    boot: Child,
    until: Option<ChildStdin>,
    first_process: String,
}

impl DebianRoot {
    /// Boots a system; the first one on a machine is downloaded.
    pub(crate) fn boot() -> Self {
        Self::boot_with(&[])
    }

    /// Boots a system that has directories of this machine.
    pub(crate) fn boot_with(mounts: &[Mount]) -> Self {
        program::require_root();
        for tool in ["nsenter", "unshare", "pivot_root", "ip"] {
            program::find(tool);
        }
        let mut boot = Command::new(program::repository("tests/support/debian-boot.sh"))
            .arg(image())
            .env("DEBIAN_MOUNTS", mounts.iter().map(Mount::line).collect::<String>())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash can be run");
        let until = boot.stdin.take();
        let output = boot.stdout.take().expect("it is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a pipe can be read");
        assert!(!line.is_empty(), "Debian 12 does not boot: the reason is above");
        Self { boot, until, first_process: line.trim_end().to_owned() }
    }

    /// Returns the path by which this machine reaches a file of the system.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        let root = format!("/proc/{}/root", self.first_process);
        Path::new(&root).join(inside.trim_start_matches('/'))
    }

    /// Returns a command that runs a program of the system as root, outside of any login and service.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first_process, "--all", "--"]);
        command.args(["env", "--ignore-environment", "LANG=C.UTF-8", "HOME=/root"]);
        command.args(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", name]);
        command
    }

    /// Returns a command that runs a program as a user in a login of its own, which begins in the user's home.
    pub(crate) fn login(&self, user: &str, name: &str) -> Command {
        let mut command = self.command("systemd-run");
        command.args(["--quiet", "--pipe", "--wait", "--collect", "--property=PAMName=su-l"]);
        command.args(["--property=WorkingDirectory=~", &format!("--property=User={user}")]);
        command.args(["--setenv=LANG=C.UTF-8", name]);
        command
    }

    /// Runs a script with bash as a user who has logged in.
    pub(crate) fn run(&self, user: &str, script: &str) -> Finished {
        program::run(self.login(user, "bash").args(["--login", "-c", script]))
    }

    /// Copies a file of this machine into a directory of the system, where everyone can read it.
    pub(crate) fn copy_in(&self, file: &Path, directory: &str) {
        let about =
            fs::metadata(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mode = if about.permissions().mode() & 0o111 == 0 { "0644" } else { "0755" };
        let to = self.path(directory);
        program::run(Command::new("install").args(["-m", mode, "-t"]).arg(to).arg(file)).success();
    }
}

impl Drop for DebianRoot {
    fn drop(&mut self) {
        // The end of its input, upon which it kills the first process, and all others end with that one.
        drop(self.until.take());
        let _ = self.boot.wait();
    }
}

/// Returns the directory of the system to boot, which is made once.
pub(crate) fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("debian-12");
        let status = Command::new(program::repository("tests/support/debian-12.sh"))
            .arg(&directory)
            .status()
            .expect("bash can be run");
        assert!(status.success(), "cannot make Debian 12");
        directory
    })
}
