//! A reader at a machine: two shells, one of the user `runner` and one of root, that last as long as the page.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::support::debian_root::DebianRoot;
use crate::support::program::{self, DEADLINE};

/// Where readers begin, unless they have a clone.
pub(crate) const HOME: &str = "/home/runner";
/// What the shells read and write, which is no part of what a page does.
const FILES: &str = "/run/reader";

pub(crate) struct Session<'a> {
    root: &'a DebianRoot,
    /// Where each block begins.
    directory: &'static str,
    deadline: Duration,
    shells: BTreeMap<&'static str, Shell>,
    count: usize,
}

struct Shell {
    login: Option<Child>,
    input: Option<ChildStdin>,
    /// The exit status of each command.
    statuses: Receiver<String>,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: String,
    /// Nothing if it did not end in time, or ended the shell.
    pub(crate) status: Option<i32>,
}

impl<'a> Session<'a> {
    /// Begins in a directory, with a deadline for each command.
    pub(crate) fn new(root: &'a DebianRoot, directory: &'static str, deadline: Duration) -> Self {
        program::run(root.command("install").args(["-d", "-m", "1777", FILES])).success();
        Self { root, directory, deadline, shells: BTreeMap::new(), count: 0 }
    }

    /// Goes to the directory where each block of a page begins.
    pub(crate) fn go_back(&mut self) {
        for user in ["runner", "root"] {
            if self.shells.contains_key(user) {
                self.run(user, &format!("cd '{}'", self.directory));
            }
        }
    }

    /// Runs a command in the shell of a user.
    pub(crate) fn run(&mut self, user: &'static str, command: &str) -> Ended {
        self.count += 1;
        let files = format!("{FILES}/{}", self.count);
        fs::write(self.root.path(&files), format!("{command}\n")).expect("root may write there");
        let (root, directory) = (self.root, self.directory);
        let shell = self.shells.entry(user).or_insert_with(|| Shell::start(root, user, directory));
        // In the shell itself, so that variables and directories stay.
        let line = format!(". {files} </dev/null >{files}.output 2>&1; echo $?\n");
        let input = shell.input.as_mut().expect("it is there until the end");
        let is_there = input.write_all(line.as_bytes()).is_ok();
        let status = is_there.then(|| shell.statuses.recv_timeout(self.deadline).ok()).flatten();
        let output = fs::read(self.root.path(&format!("{files}.output"))).unwrap_or_default();
        Ended {
            output: String::from_utf8_lossy(&output).into_owned(),
            status: status.and_then(|status| status.parse().ok()),
        }
    }
}

impl Shell {
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

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell ends with its input, and the login with the shell.
        drop(self.input.take());
        self.login.take().and_then(|login| program::wait(login, DEADLINE));
    }
}
