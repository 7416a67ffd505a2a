//! `oci-hooks monitor` as a child process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::monitor::support::{HookTree, LONG};

/// A running monitor, killed on drop.
pub(crate) struct MonitorProcess {
    pub(crate) child: Child,
    pub(crate) stdout: Receiver<String>,
    pub(crate) stderr: Receiver<String>,
}

impl MonitorProcess {
    pub(crate) fn start(tree: &HookTree, args: &[&str]) -> Self {
        Self::start_with(tree, args, |_| {})
    }

    pub(crate) fn start_with(
        tree: &HookTree,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        command.args(["monitor", "--coalesce", "10", "--hooks-dir"]).arg(tree.path("hooks.d"));
        command.args(args).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        MonitorProcess { child, stdout, stderr }
    }

    /// Returns the next event.
    #[track_caller]
    pub(crate) fn event(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Returns the kind of the next event, and its file.
    #[track_caller]
    pub(crate) fn next_event(&self) -> String {
        let event = self.event();
        let name = event["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["event"].as_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.stdout.recv_timeout(LONG).expect("a line in time")
    }

    #[track_caller]
    pub(crate) fn error_line(&self) -> String {
        self.stderr.recv_timeout(LONG).expect("a line in time")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the exit.
    pub(crate) fn end(mut self) -> ExitStatus {
        // Both streams are closed at the exit.
        for stream in [&self.stdout, &self.stderr] {
            while stream.recv_timeout(LONG).is_ok() {}
        }
        self.child.wait().unwrap()
    }
}

impl Drop for MonitorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines in a thread, so that waiting for them can time out.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Removes the time from an event, after checking it.
pub(crate) fn remove_time(mut event: Value) -> Value {
    let time = event.as_object_mut().unwrap().remove("time").unwrap();
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    assert!(time.duration_until(jiff::Timestamp::now()).abs() < LONG.try_into().unwrap());
    event
}
