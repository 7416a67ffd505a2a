//! A reader at a machine: two shells, one of the user `runner` and one of root, open for the whole page.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use oci_hooks_testsupport::debian_root::DebianRoot;
use oci_hooks_testsupport::program;

/// Working directory of readers without a clone.
pub(crate) const HOME: &str = "/home/runner";
/// Directory of the shells' input and output, which no page creates.
const FILES: &str = "/run/reader";
/// Deadline of a command: exceeds the time for compiling all tests on a busy machine.
const DEADLINE: Duration = Duration::from_secs(2400);
/// Time limit for a shell to exit, which a running command may prevent.
const END: Duration = Duration::from_secs(20);

pub(crate) struct ReaderSession<'a> {
    root: &'a DebianRoot,
    /// Working directory at the start of each block.
    directory: &'static str,
    shells: BTreeMap<&'static str, ReaderShell>,
    count: usize,
}

struct ReaderShell {
    login: Option<Child>,
    input: Option<ChildStdin>,
    /// Exit statuses of the commands.
    statuses: Receiver<String>,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) output: String,
    /// Exit status, or nothing if the command timed out or ended the shell.
    pub(crate) status: Option<i32>,
}

impl<'a> ReaderSession<'a> {
    /// Starts in a directory.
    pub(crate) fn new(root: &'a DebianRoot, directory: &'static str) -> Self {
        program::run(root.command("install").args(["-d", "-m", "1777", FILES])).success();
        Self { root, directory, shells: BTreeMap::new(), count: 0 }
    }

    /// Returns to the working directory for the start of a block.
    pub(crate) fn return_to_start(&mut self) {
        for user in ["runner", "root"] {
            if self.shells.contains_key(user) {
                self.run(user, &format!("cd '{}'", self.directory));
            }
        }
    }

    /// Runs a command in the shell of a user.
    pub(crate) fn run(&mut self, user: &'static str, command: &str) -> CommandResult {
        self.count += 1;
        let files = format!("{FILES}/{}", self.count);
        fs::write(self.root.path(&files), format!("{command}\n")).expect("root may write there");
        let (root, directory) = (self.root, self.directory);
        let shell =
            self.shells.entry(user).or_insert_with(|| ReaderShell::start(root, user, directory));
        // Runs in the shell itself, so that variables and the working directory are kept.
        let line = format!(". {files} </dev/null >{files}.output 2>&1; echo $?\n");
        let input = shell.input.as_mut().expect("it is there until the end");
        let is_there = input.write_all(line.as_bytes()).is_ok();
        let status = is_there.then(|| shell.statuses.recv_timeout(DEADLINE).ok()).flatten();
        if status.is_none() {
            // The next command starts another shell, since this one is still busy.
            self.shells.remove(user);
        }
        let output = fs::read(self.root.path(&format!("{files}.output"))).unwrap_or_default();
        CommandResult {
            output: String::from_utf8_lossy(&output).into_owned(),
            status: status.and_then(|status| status.parse().ok()),
        }
    }
}

impl ReaderShell {
    fn start(root: &DebianRoot, user: &str, directory: &str) -> Self {
        let mut login = root
            .login(user, "bash")
            .args(["--login", "-c", &format!("cd '{directory}' && exec bash -s")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a user can log in");
        let input = login.stdin.take();
        let output = BufReader::new(login.stdout.take().expect("it is a pipe"));
        let (sender, statuses) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { login: Some(login), input, statuses }
    }
}

impl Drop for ReaderShell {
    fn drop(&mut self) {
        // The shell exits at the end of its input, and the login with the shell.
        drop(self.input.take());
        self.login.take().and_then(|login| program::wait(login, END));
    }
}
