//! Running programs with a deadline.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Exceeds the duration of any command of a test, also on a slow machine that is busy with other tests.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// A command that has exited.
pub struct FinishedCommand {
    command: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl FinishedCommand {
    /// Returns the standard output of a command that must succeed.
    #[track_caller]
    pub fn success(self) -> String {
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

    /// Returns the standard error of a command that must fail.
    #[track_caller]
    pub fn failure(self) -> String {
        assert!(!self.status.success(), "{} succeeded\n{}", self.command, self.stdout);
        self.stderr
    }
}

/// Compiles `attack.c` statically, for any root file system.
#[track_caller]
pub fn compile_attack(path: &Path) {
    let source = repository("crates/testsupport/src/attack.c");
    let mut compiler = Command::new(find("cc"));
    run(compiler.args(["-static", "-o"]).args([path, &source])).success();
}

/// Finds a program, in Debian's directories first, because `PATH` may have another program of the same name
/// before them.
#[track_caller]
pub fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("this test needs the program `{name}`: tests/run installs it"))
}

/// Panics unless run by root, which containers, namespaces and mounts require.
#[track_caller]
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root: tests/run uses sudo");
}

/// Returns a command with a limit of open files, which its children inherit.
pub fn limited(program: impl AsRef<std::ffi::OsStr>, descriptors: u32) -> Command {
    let mut command = Command::new(find("prlimit"));
    command.arg(format!("--nofile={descriptors}")).arg(program);
    command
}

/// Runs a command with empty standard input.
#[track_caller]
pub fn run(command: &mut Command) -> FinishedCommand {
    run_with_input(command, b"")
}

/// Runs a command with `input` on standard input.
///
/// Its output goes to files: a pipe would stay open as long as a leftover container holds it.
#[track_caller]
pub fn run_with_input(command: &mut Command, input: &[u8]) -> FinishedCommand {
    run_by(command, input, Command::spawn)
}

/// Runs a command that a function spawns.
pub fn run_by(
    command: &mut Command,
    input: &[u8],
    spawn: impl FnOnce(&mut Command) -> std::io::Result<Child>,
) -> FinishedCommand {
    let mut stdin = scratch_file();
    stdin.write_all(input).expect("a scratch file takes the input");
    stdin.rewind().expect("a file can be rewound");
    let stdout = scratch_file();
    let stderr = scratch_file();
    command.stdin(stdin).stdout(clone(&stdout)).stderr(clone(&stderr));
    let child = spawn(command).unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let status = wait(child, DEADLINE)
        .unwrap_or_else(|| panic!("{command:?} ran for more than {DEADLINE:?}: killed"));
    FinishedCommand {
        command: format!("{command:?}"),
        status,
        stdout: contents(stdout),
        stderr: contents(stderr),
    }
}

/// Waits for a child. If the deadline passes, kills it and returns nothing.
pub fn wait(mut child: Child, deadline: Duration) -> Option<ExitStatus> {
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait()));
    match receiver.recv_timeout(deadline) {
        Ok(status) => Some(status.expect("a child can be waited for once")),
        Err(_) => {
            // The child may have exited just now.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            None
        }
    }
}

/// Polls until a condition is met.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Returns a name that is unique on this machine and no substring of another name. A process id does not
/// suffice, because containers have their own.
pub fn unique_name() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("/proc is mounted");
    format!("oci-hooks-test-{}", uuid.trim_end())
}

/// Returns the path of a program of the workspace, as built by cargo beside the test.
#[track_caller]
pub fn built_program(name: &str) -> PathBuf {
    let path = profile().join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --workspace --bins --examples`, or tests/run",
        path.display()
    );
    path
}

/// Returns the directory for files that tests create once and keep.
pub fn cache_dir() -> PathBuf {
    let path = profile().with_file_name("tmp");
    std::fs::create_dir_all(&path).expect("it is beside the test");
    path
}

/// Returns a path in [`cache_dir`] that a function fills if it does not exist. Other tests, in this process
/// and in others, wait meanwhile instead of making it too.
pub fn made_once(name: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let ready = cache_dir().join(name);
    if ready.exists() {
        return ready;
    }
    let lock = cache_dir().join(format!("{name}.lock"));
    let lock = File::create(lock).expect("the cache takes files");
    lock.lock().expect("a file can be locked");
    // Another test may have made it meanwhile.
    if !ready.exists() {
        let making = temporary_directory_in(&cache_dir());
        fill(making.path());
        std::fs::rename(making.path(), &ready).expect("they are in one directory");
        let _ = making.keep();
    }
    ready
}

/// Returns the directory of programs of the test's build profile, such as `target/debug`.
fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("/proc is mounted");
    test.ancestors().nth(2).expect("tests are in `deps`").to_owned()
}

/// Runs a script of this repository that makes something, and returns the path that it prints. It has no deadline,
/// which a build on a busy machine could exceed.
pub fn path_made_by(script: &str) -> PathBuf {
    let mut command = Command::new(repository(script));
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().expect("the script can be run");
    assert!(output.status.success(), "{script} failed");
    let path = String::from_utf8(output.stdout).expect("the path is text");
    PathBuf::from(path.trim_end())
}

/// Returns the path of a file or directory of this repository.
pub fn repository(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("the crate is in `crates`").join(path)
}

/// Creates a directory that is removed on drop.
pub fn temporary_directory() -> tempfile::TempDir {
    temporary_directory_in(&std::env::temp_dir())
}

/// Creates a directory below another, removed on drop.
pub fn temporary_directory_in(directory: &Path) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("oci-hooks-")
        .tempdir_in(directory)
        .unwrap_or_else(|error| panic!("cannot make a temporary directory: {error}"))
}

/// Removes a temporary directory of any depth: dropping it would recurse once for each level.
pub fn remove(directory: &mut tempfile::TempDir) {
    directory.disable_cleanup(true);
    // The test may be failing already.
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
/// A child process writes it: a file that is open for writing cannot be executed, and a child forked by
/// another thread holds the descriptors of this process for a moment.
#[track_caller]
pub fn write_program(path: &Path, content: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "0755", "/dev/stdin"]).arg(path);
    run_with_input(&mut install, content.as_bytes()).success();
}

/// Copies a program so that it can be run at once.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    run(Command::new("install").args(["-m", "0755"]).arg(from).arg(to)).success();
}
