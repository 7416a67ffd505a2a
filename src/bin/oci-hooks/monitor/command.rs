//! Running the user's command after changes, one at a time.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oci_hooks::sys::error::chain;
use oci_hooks::sys::process::{End, Finished, Limit, Program, RunError};

use super::service::NOTIFY_SOCKET;
use crate::context::Context;
use crate::error::Diagnostic;

const SHELL: &str = "/bin/sh";

/// How much of what the command writes is shown.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Changes that the command is to be told.
#[derive(Debug, Default)]
pub struct Batch {
    kinds: BTreeSet<&'static str>,
    changes: usize,
    /// The events, as they are printed in JSON.
    lines: String,
}

impl Batch {
    pub fn add(&mut self, kind: &'static str, line: &str) {
        self.kinds.insert(kind);
        self.changes += 1;
        self.lines.push_str(line);
        self.lines.push('\n');
    }

    fn append(&mut self, later: Batch) {
        self.kinds.extend(later.kinds);
        self.changes += later.changes;
        self.lines.push_str(&later.lines);
    }
}

/// Runs a command for each batch of changes.
pub struct Runner {
    command: OsString,
    timeout: Duration,
    running: Option<Running>,
    /// What changed while it runs.
    waiting: Option<Batch>,
}

struct Running {
    thread: JoinHandle<Result<Finished, RunError>>,
    /// Readable when the thread is done, as it closes the other end.
    ended: UnixStream,
}

impl Runner {
    pub fn new(command: OsString, timeout: Duration) -> Self {
        Runner { command, timeout, running: None, waiting: None }
    }

    /// Runs the command, or remembers to when it has ended.
    pub fn run(&mut self, batch: Batch, context: &Context) {
        if self.running.is_none() {
            match self.start(batch) {
                Ok(running) => self.running = Some(running),
                Err(error) => self.complain(context, &format!("cannot start a thread: {error}")),
            }
        } else if let Some(waiting) = &mut self.waiting {
            waiting.append(batch);
        } else {
            self.waiting = Some(batch);
        }
    }

    /// Returns what is readable when the command has ended.
    pub fn ended_fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.ended.as_fd())
    }

    /// Reports how the command ended, and runs it again if something changed meanwhile.
    pub fn ended(&mut self, context: &Context) {
        self.report(context);
        if let Some(batch) = self.waiting.take() {
            self.run(batch, context);
        }
    }

    /// Waits for the command that is running, which its timeout bounds. No other is started.
    pub fn wait(&mut self, context: &Context) {
        self.report(context);
    }

    fn start(&self, batch: Batch) -> io::Result<Running> {
        let (ended, ends) = UnixStream::pair()?;
        let (command, timeout) = (self.command.clone(), self.timeout);
        let thread = thread::Builder::new().name("command".to_owned()).spawn(move || {
            let result = execute(&command, timeout, &batch);
            drop(ends);
            result
        })?;
        Ok(Running { thread, ended })
    }

    fn report(&mut self, context: &Context) {
        let Some(Running { thread, .. }) = self.running.take() else { return };
        let Ok(result) = thread.join() else {
            return self.complain(context, "the thread of the command panicked");
        };
        let finished = match result {
            Ok(finished) => finished,
            Err(error) => return self.complain(context, &chain(&error)),
        };
        context.relay(&finished.stdout);
        context.relay(&finished.stderr);
        match finished.end {
            End::Exited(0) => {}
            End::Exited(code) => {
                self.complain(context, &format!("command exited with status {code}"));
            }
            End::Signaled(signal) => {
                self.complain(context, &format!("command was killed by signal {signal}"));
            }
            End::TimedOut => {
                let seconds = self.timeout.as_secs();
                self.complain(context, &format!("command was killed after {seconds} s"));
            }
            End::OutputTooLarge => {
                self.complain(context, "command was killed as it wrote too much");
            }
        }
    }

    fn complain(&self, context: &Context, message: &str) {
        let command = self.command.to_string_lossy();
        context.warn(&Diagnostic {
            class: "exec",
            path: None,
            location: None,
            message: format!("{message}: {command}"),
            hint: None,
        });
    }
}

fn execute(command: &OsStr, timeout: Duration, batch: &Batch) -> Result<Finished, RunError> {
    let environment: Vec<_> = env::vars_os()
        // It is ours to talk to the service manager.
        .filter(|(name, _)| name != NOTIFY_SOCKET)
        .collect();
    let kinds = batch.kinds.iter().copied().collect::<Vec<_>>().join(" ");
    let changes = batch.changes.to_string();
    let mut program = Program::new(Path::new(SHELL), Path::new("."));
    program.argv = [SHELL.as_ref(), "-c".as_ref(), command].to_vec();
    program.env = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
    program.env.push(("OCI_HOOKS_EVENTS".as_ref(), kinds.as_ref()));
    program.env.push(("OCI_HOOKS_CHANGES".as_ref(), changes.as_ref()));
    program.stdin = batch.lines.as_bytes();
    program.timeout = Some(timeout);
    program.stdout = Limit::Truncate(MAX_OUTPUT_BYTES);
    program.stderr = Limit::Truncate(MAX_OUTPUT_BYTES);
    program.run()
}
