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

use oci_hooks_files::error::chain;
use oci_hooks_files::process::{ChildProgram, FinishedProgram, OutputLimit, ProgramEnd, RunError};

use super::service::NOTIFY_SOCKET;
use crate::context::CommandContext;
use crate::error::Diagnostic;

const SHELL: &str = "/bin/sh";

/// Size limit of each output stream of the command. The rest is dropped.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Changes to pass to the command.
#[derive(Debug, Default)]
pub struct ChangeBatch {
    kinds: BTreeSet<&'static str>,
    changes: usize,
    /// The events in JSON, one per line.
    lines: String,
}

impl ChangeBatch {
    pub fn add(&mut self, kind: &'static str, line: &str) {
        self.kinds.insert(kind);
        self.changes += 1;
        self.lines.push_str(line);
        self.lines.push('\n');
    }

    fn append(&mut self, later: ChangeBatch) {
        self.kinds.extend(later.kinds);
        self.changes += later.changes;
        self.lines.push_str(&later.lines);
    }
}

/// Runs a command for each batch of changes.
pub struct ExecRunner {
    command: OsString,
    timeout: Duration,
    running: Option<RunningExec>,
    /// Changes since the command started, for the next run.
    waiting: Option<ChangeBatch>,
}

struct RunningExec {
    thread: JoinHandle<Result<FinishedProgram, RunError>>,
    /// Readable once the command has ended: the thread then closes the other end.
    ended: UnixStream,
}

impl ExecRunner {
    pub fn new(command: OsString, timeout: Duration) -> Self {
        ExecRunner { command, timeout, running: None, waiting: None }
    }

    /// Runs the command, now or after the current one has ended.
    pub fn run(&mut self, batch: ChangeBatch, context: &CommandContext) {
        if self.running.is_none() {
            match self.start(batch) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    self.report_problem(
                        context,
                        &format!("cannot start a thread for the command: {error}"),
                    );
                }
            }
        } else if let Some(waiting) = &mut self.waiting {
            waiting.append(batch);
        } else {
            self.waiting = Some(batch);
        }
    }

    /// Returns the descriptor that is readable when the command has ended; `None` if no command runs.
    pub fn ended_fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.ended.as_fd())
    }

    /// Reports the end of the command, and runs it again if there were changes meanwhile.
    pub fn handle_end(&mut self, context: &CommandContext) {
        self.report(context);
        if let Some(batch) = self.waiting.take() {
            self.run(batch, context);
        }
    }

    /// Waits for the running command, up to its timeout. No other command is started.
    pub fn wait(&mut self, context: &CommandContext) {
        self.report(context);
    }

    fn start(&self, batch: ChangeBatch) -> io::Result<RunningExec> {
        let (ended, ends) = UnixStream::pair()?;
        let (command, timeout) = (self.command.clone(), self.timeout);
        let thread = thread::Builder::new().name("command".to_owned()).spawn(move || {
            let result = execute(&command, timeout, &batch);
            drop(ends);
            result
        })?;
        Ok(RunningExec { thread, ended })
    }

    fn report(&mut self, context: &CommandContext) {
        let Some(RunningExec { thread, .. }) = self.running.take() else { return };
        let Ok(result) = thread.join() else {
            return self.report_problem(context, "the thread of the command panicked");
        };
        let finished = match result {
            Ok(finished) => finished,
            Err(error) => return self.report_problem(context, &chain(&error)),
        };
        context.relay(&finished.stdout);
        context.relay(&finished.stderr);
        match finished.end {
            ProgramEnd::Exited(0) => {}
            ProgramEnd::Exited(code) => {
                self.report_problem(context, &format!("command exited with status {code}"));
            }
            ProgramEnd::Signaled(signal) => {
                self.report_problem(context, &format!("command was killed by signal {signal}"));
            }
            ProgramEnd::TimedOut => {
                let seconds = self.timeout.as_secs();
                self.report_problem(context, &format!("command was killed after {seconds} s"));
            }
            ProgramEnd::OutputTooLarge => {
                self.report_problem(context, "command was killed because it wrote too much output");
            }
        }
    }

    fn report_problem(&self, context: &CommandContext, message: &str) {
        let command = self.command.to_string_lossy();
        context.warn(&Diagnostic::new("exec", None, format!("{message}: {command}")));
    }
}

fn execute(
    command: &OsStr,
    timeout: Duration,
    batch: &ChangeBatch,
) -> Result<FinishedProgram, RunError> {
    let environment: Vec<_> = env::vars_os()
        // Only this program notifies the service manager.
        .filter(|(name, _)| name != NOTIFY_SOCKET)
        .collect();
    let kinds = batch.kinds.iter().copied().collect::<Vec<_>>().join(" ");
    let changes = batch.changes.to_string();
    let mut program = ChildProgram::new(Path::new(SHELL), Path::new("."));
    program.argv = [SHELL.as_ref(), "-c".as_ref(), command].to_vec();
    program.env = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
    program.env.push(("OCI_HOOKS_EVENTS".as_ref(), kinds.as_ref()));
    program.env.push(("OCI_HOOKS_CHANGES".as_ref(), changes.as_ref()));
    program.stdin = batch.lines.as_bytes();
    program.timeout = Some(timeout);
    program.stdout = OutputLimit::Truncate(MAX_OUTPUT_BYTES);
    program.stderr = OutputLimit::Truncate(MAX_OUTPUT_BYTES);
    program.run()
}
