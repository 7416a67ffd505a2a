//! Running the programs that tests need, none of them longer than a deadline.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Longer than any command of a test takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// A command that has ended.
pub(crate) struct Finished {
    command: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns what a command that must succeed wrote to standard output.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert!(
            self.status.success(),
            "{}: {}\n{}{}",
            self.command,
            self.status,
            self.stdout,
            self.stderr
        );
        self.stdout
    }

    /// Returns what a command that must not succeed wrote to standard error.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        assert!(!self.status.success(), "{} succeeded\n{}", self.command, self.stdout);
        self.stderr
    }
}

/// Finds a program; Debian's directories come first because another program of the same name may
/// stand before them in `PATH`.
#[track_caller]
pub(crate) fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("this test needs the program `{name}`: tests/run installs it"))
}

/// Fails a test that is not run by root: containers, namespaces and mounts need it.
#[track_caller]
pub(crate) fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root: tests/run uses sudo");
}

/// Returns a command that may have so many files open at a time, and what it executes too.
pub(crate) fn limited(program: impl AsRef<std::ffi::OsStr>, descriptors: u32) -> Command {
    let mut command = Command::new(find("prlimit"));
    command.arg(format!("--nofile={descriptors}")).arg(program);
    command
}

/// Runs a command with nothing on standard input.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Finished {
    run_with_input(command, b"")
}

/// Runs a command with `input` on standard input.
///
/// Its output goes to files: a pipe would stay open as long as a container left behind holds it.
#[track_caller]
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Finished {
    run_by(command, input, Command::spawn)
}

/// Runs a command that a function starts in its own way.
pub(crate) fn run_by(
    command: &mut Command,
    input: &[u8],
    spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
) -> Finished {
    let mut stdin = scratch_file();
    stdin.write_all(input).expect("a scratch file takes the input");
    stdin.rewind().expect("a file can be rewound");
    let stdout = scratch_file();
    let stderr = scratch_file();
    command.stdin(stdin).stdout(clone(&stdout)).stderr(clone(&stderr));
    let child = spawn(command).unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let status = wait(child, DEADLINE)
        .unwrap_or_else(|| panic!("{command:?} ran for more than {DEADLINE:?}: killed"));
    Finished {
        command: format!("{command:?}"),
        status,
        stdout: contents(stdout),
        stderr: contents(stderr),
    }
}

/// Waits for a child; kills it and returns nothing when the deadline passes first.
pub(crate) fn wait(mut child: Child, deadline: Duration) -> Option<ExitStatus> {
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait()));
    match receiver.recv_timeout(deadline) {
        Ok(status) => Some(status.expect("a child can be waited for once")),
        Err(_) => {
            // It may have ended just now, and then there is nothing left to kill.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            None
        }
    }
}

/// Waits until something is so that nothing tells of.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Returns a name that nothing else on this machine has, and that is in the name of nothing else: the
/// numbers of processes are not enough, for another container may have the same ones.
pub(crate) fn unique_name() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("/proc is mounted");
    format!("oci-hooks-test-{}", uuid.trim_end())
}

/// Returns a directory of this repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Makes a directory that goes away with the value.
pub(crate) fn temporary_directory() -> tempfile::TempDir {
    temporary_directory_in(&std::env::temp_dir())
}

/// Makes a directory below another that goes away with the value.
pub(crate) fn temporary_directory_in(directory: &Path) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("oci-hooks-")
        .tempdir_in(directory)
        .unwrap_or_else(|error| panic!("cannot make a temporary directory: {error}"))
}

/// Removes a temporary directory, however deep what is in it: the value itself would go down by a call for each level.
pub(crate) fn remove(directory: &mut tempfile::TempDir) {
    directory.disable_cleanup(true);
    // A test may be failing already.
    let _ = Command::new("rm").arg("-rf").arg(directory.path()).status();
}

fn scratch_file() -> File {
    tempfile::tempfile().unwrap_or_else(|error| panic!("cannot make a scratch file: {error}"))
}

fn clone(file: &File) -> Stdio {
    file.try_clone().expect("a descriptor can be duplicated").into()
}

fn contents(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a file can be rewound");
    file.read_to_end(&mut bytes).expect("a scratch file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a program that can be run at once.
///
/// Another process does it: while a file is open for writing it cannot be executed, and a child that
/// another thread forks holds what this process has open for a moment.
#[track_caller]
pub(crate) fn write_program(path: &Path, content: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "0755", "/dev/stdin"]).arg(path);
    run_with_input(&mut install, content.as_bytes()).success();
}

/// Copies a program so that it can be run at once.
#[track_caller]
pub(crate) fn copy_program(from: &Path, to: &Path) {
    run(Command::new("install").args(["-m", "0755"]).arg(from).arg(to)).success();
}
