//! A directory with settings and a store, and the program to run in it.
//!
//! Tests pass the program and the directory of their golden files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::golden;

/// A directory of settings and state, removed with the value.
pub struct TestEnv {
    program: PathBuf,
    temp: tempfile::TempDir,
}

/// Output and exit code of a run, with the paths of the program and of the directory replaced by `{PROGRAM}`
/// and `{ROOT}`.
#[derive(Debug)]
pub struct ProgramRun {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl TestEnv {
    pub fn new(program: &str) -> Self {
        let env = TestEnv { program: program.into(), temp: tempfile::tempdir().unwrap() };
        let root = env.temp.path().display();
        let settings = format!("[store]\nroot = \"{root}/store\"\nrun = \"{root}/run\"\n");
        env.write("settings.toml", &settings);
        env
    }

    /// Replaces the program by a copy: the directory of the build may belong to another user.
    pub fn copy_program(&mut self) {
        let copy = self.path(self.program.file_name().unwrap().to_str().unwrap());
        // Copied by a child process: a file that is open for writing, even in a forked child of another thread,
        // cannot be executed.
        let status = Command::new("cp").args([&self.program, &copy]).status().unwrap();
        assert!(status.success());
        self.program = copy;
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Writes a file that only its owner can write, whatever the umask.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Returns the program with these settings and an empty environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(self.temp.path()).env_clear().arg("--config");
        command.arg(self.path("settings.toml")).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> ProgramRun {
        self.run_with_input(self.command(args), b"")
    }

    /// Runs the program apart from the machine's network, where calls of other tests could take the same addresses.
    pub fn run_apart(&self, args: &[&str]) -> ProgramRun {
        self.run_command_apart(self.command(args))
    }

    /// Runs a command. Root runs it in a new network namespace; ordinary users cannot change the machine's network.
    pub fn run_command_apart(&self, command: Command) -> ProgramRun {
        let run = || {
            if rustix::process::geteuid().is_root() {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
            }
            self.run_with_input(command, b"")
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    pub fn run_with_input(&self, command: Command, input: &[u8]) -> ProgramRun {
        self.finish_run(start(command, input).wait_with_output().unwrap())
    }

    fn finish_run(&self, output: Output) -> ProgramRun {
        let root = self.temp.path().to_str().unwrap();
        let text = |bytes| {
            let text = String::from_utf8(bytes).unwrap();
            text.replace(self.program.to_str().unwrap(), "{PROGRAM}").replace(root, "{ROOT}")
        };
        ProgramRun {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code(),
        }
    }
}

fn start(mut command: Command, input: &[u8]) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that fails early does not read its input.
    let _ = stdin.write_all(input);
    child
}

/// Returns settings without the comments on their origin.
pub fn remove_origins(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(" # ").next().unwrap_or_default());
    lines.map(|line| format!("{line}\n")).collect()
}

/// Compares text with a golden file of a directory.
#[track_caller]
pub fn golden(data: &str, name: &str, found: &str) {
    golden::compare(&Path::new(data).join(name), found);
}
