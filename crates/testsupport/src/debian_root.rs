//! A freshly installed and booted Debian 12, for installing packages and for following the documentation.
//!
//! It runs in memory with systemd as init, has no network but loopback, and stops when the value is dropped or
//! the test ends. Its user `runner` has a home and subordinate ids; `apt-get install` finds the dependencies of
//! our packages.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use super::program::{self, FinishedCommand};

/// A directory of this machine, mounted in the system.
pub struct RootMount {
    pub from: PathBuf,
    /// Mount point in the system.
    pub to: &'static str,
    pub is_writable: bool,
}

impl RootMount {
    fn line(&self) -> String {
        let mode = if self.is_writable { "rw" } else { "ro" };
        format!("{}:{}:{mode}\n", self.from.display(), self.to)
    }
}

/// A running system, stopped on drop.
pub struct DebianRoot {
    boot: Child,
    until: Option<ChildStdin>,
    first_process: String,
}

impl DebianRoot {
    /// Boots a system. The first call on a machine downloads it.
    pub fn boot() -> Self {
        Self::boot_with(&[])
    }

    /// Boots a system with directories of this machine mounted.
    pub fn boot_with(mounts: &[RootMount]) -> Self {
        program::require_root();
        for tool in ["nsenter", "unshare", "pivot_root", "ip"] {
            program::find(tool);
        }
        let mut boot = Command::new(program::repository("tests/support/debian-boot.sh"))
            .arg(image())
            .env("DEBIAN_MOUNTS", mounts.iter().map(RootMount::line).collect::<String>())
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

    /// Returns the path on this machine of a file of the system.
    pub fn path(&self, inside: &str) -> PathBuf {
        let root = format!("/proc/{}/root", self.first_process);
        Path::new(&root).join(inside.trim_start_matches('/'))
    }

    /// Returns a command that runs a program of the system as root, outside of logins and services.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first_process, "--all", "--"]);
        command.args(["env", "--ignore-environment", "LANG=C.UTF-8", "HOME=/root"]);
        command.args(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", name]);
        command
    }

    /// Returns a command that runs a program in a login session of a user, in the user's home.
    pub fn login(&self, user: &str, name: &str) -> Command {
        let mut command = self.command("systemd-run");
        command.args(["--quiet", "--pipe", "--wait", "--collect", "--property=PAMName=su-l"]);
        command.args(["--property=WorkingDirectory=~", &format!("--property=User={user}")]);
        command.args(["--setenv=LANG=C.UTF-8", name]);
        command
    }

    /// Runs a bash script in a login session of a user.
    pub fn run(&self, user: &str, script: &str) -> FinishedCommand {
        program::run(self.login(user, "bash").args(["--login", "-c", script]))
    }

    /// Copies a file of this machine into a directory of the system, readable by all users.
    pub fn copy_in(&self, file: &Path, directory: &str) {
        let about =
            fs::metadata(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mode = if about.permissions().mode() & 0o111 == 0 { "0644" } else { "0755" };
        let to = self.path(directory);
        program::run(Command::new("install").args(["-m", mode, "-t"]).arg(to).arg(file)).success();
    }
}

impl Drop for DebianRoot {
    fn drop(&mut self) {
        // At the end of its input the script kills init, which ends all other processes.
        drop(self.until.take());
        let _ = self.boot.wait();
    }
}

/// Returns the directory of the system to boot, created on first use.
fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let directory = program::cache_dir().with_file_name("debian-12");
        let status = Command::new(program::repository("tests/support/debian-12.sh"))
            .arg(&directory)
            .status()
            .expect("bash can be run");
        assert!(status.success(), "cannot make Debian 12");
        directory
    })
}
