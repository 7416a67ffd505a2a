//! A directory with settings and a store, and the program to run there.
//!
//! Whoever includes this has the program as `PROGRAM`, and as `DATA` the directory of its golden
//! files below `tests/data`.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sched::{CloneFlags, unshare};

use crate::{DATA, PROGRAM};

/// A directory of settings and state, gone with the value.
pub(crate) struct TestEnv {
    temp: tempfile::TempDir,
}

/// What a run printed, with the temporary directory written as `{ROOT}`.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        let env = TestEnv { temp: tempfile::tempdir().unwrap() };
        let root = env.temp.path().display();
        let settings = format!("[store]\nroot = \"{root}/store\"\nrun = \"{root}/run\"\n");
        env.write("settings.toml", &settings);
        env
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Writes a file that only its owner can write, whatever the umask is.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Returns the program with these settings, and no environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.temp.path()).env_clear().arg("--config");
        command.arg(self.path("settings.toml")).args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with_input(self.command(args), b"")
    }

    /// The same in a network of its own, for root: who is not root cannot change the machine's.
    pub(crate) fn run_apart(&self, args: &[&str]) -> Ran {
        let run = || {
            if rustix::process::geteuid().is_root() {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
            }
            self.run(args)
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    pub(crate) fn run_with_input(&self, command: Command, input: &[u8]) -> Ran {
        self.ran(start(command, input).wait_with_output().unwrap())
    }

    fn ran(&self, output: Output) -> Ran {
        let root = self.temp.path().to_str().unwrap();
        let text = |bytes| {
            let text = String::from_utf8(bytes).unwrap();
            text.replace(PROGRAM, "{PROGRAM}").replace(root, "{ROOT}")
        };
        Ran { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
    }
}

fn start(mut command: Command, input: &[u8]) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that fails at once does not read.
    let _ = stdin.write_all(input);
    child
}

/// Returns settings without where each is from.
pub(crate) fn without_origins(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(" # ").next().unwrap_or_default());
    lines.map(|line| format!("{line}\n")).collect()
}

/// Compares text with a golden file, or writes it there with `UPDATE_GOLDEN=1`.
#[track_caller]
pub(crate) fn golden(name: &str, found: &str) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(DATA);
    let path = data.join(name);
    if std::env::var_os("UPDATE_GOLDEN").as_deref() == Some(OsStr::new("1")) {
        fs::create_dir_all(data).unwrap();
        return fs::write(path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs; UPDATE_GOLDEN=1 rewrites it\n--- expected\n{expected}\n--- found\n{found}",
        path.display()
    );
}
