//! Runs the commands of a job: start, output, cancellation.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_host::processes::ProcessSnapshot;
use oci_hooks_init::launch::{LaunchAction, LaunchRequest, ProcessExit, ProgramPaths};
use rustix::process::Signal;
use tracing::debug;

use super::super::builtin::{
    CancelEffect, CommandLimits, JobState, StepCommand, program_candidates,
};
use super::super::log::{LogStream, OutputSink};
use super::super::resolve::Interrupt;
use super::cancel::{CancelHandle, CancelReason};
use super::error::ExecError;
use super::job_processes::{JobProcesses, MARK, signal_all, wait_until};
use super::launcher::{LaunchError, LaunchedChild, bytes_of};
use super::pump::{OutputPipes, PumpEvent, is_over};
use super::work::{INTERRUPT_TIMEOUT, WorkError, WorkThread};

/// Time for a killed process to exit. A process that takes longer hangs in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum time between `SIGTERM` and `SIGKILL` for background processes of a cancelled job, whose
/// grace period began when its command was stopped and may be over.
const LEAST_GRACE: Duration = Duration::from_secs(1);

/// Maximum time to wait, at the end of a job, for background processes to close its output.
/// GitLab's step-runner waits as long.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// A runner of the commands of one job. It forwards their output, and stops them on cancellation or timeout.
pub struct CommandRunner<'a> {
    pub(super) pipes: OutputPipes,
    groups: JobProcesses,
    cancel: &'a CancelHandle,
    grace: Duration,
    /// End of the maximum run time of the job.
    deadline: Option<Instant>,
    /// Time at which steps that run after a cancellation, such as those with `if: ${{ always() }}`,
    /// are killed; `None` before a cancellation or the end of a time limit.
    cleanup_ends: Option<Instant>,
    /// Time at which a cancellation first stopped a command: the start of the job's grace period.
    stopped: Option<Instant>,
    /// Limits that a built-in function sets for its commands and steps, in addition to those of the
    /// job.
    limits: CommandLimits,
    /// Set if the last command was stopped before it exited.
    was_stopped: bool,
}

impl<'a> CommandRunner<'a> {
    pub(super) fn new(
        groups: JobProcesses,
        cancel: &'a CancelHandle,
        grace: Duration,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        Ok(CommandRunner {
            pipes: OutputPipes::new()?,
            groups,
            cancel,
            grace,
            deadline,
            cleanup_ends: None,
            stopped: None,
            limits: CommandLimits::default(),
            was_stopped: false,
        })
    }

    /// Returns whether the job is cancelled or a time limit is over. If so, starts the time limit
    /// `cleanup` of the steps that still run, unless it has started already.
    pub fn is_cancelled(&mut self, cleanup: Duration) -> bool {
        if is_over(self.deadline) && self.cancel.reason().is_none() {
            self.cancel.stop(CancelReason::Timeout);
        }
        let is_cancelled = self.cancel.reason().is_some() || is_over(self.limits.deadline);
        if is_cancelled && self.cleanup_ends.is_none() {
            self.cleanup_ends = Some(Instant::now() + cleanup);
        }
        is_cancelled
    }

    /// Runs a command until it exits. Unless it has [`CancelEffect::None`], a cancellation of the
    /// job stops it; if it starts after that, it is killed when the time limit for cleanup is over.
    pub fn run(
        &mut self,
        command: &StepCommand<'_>,
        output: &mut dyn OutputSink,
    ) -> Result<(), ExecError> {
        self.was_stopped = false;
        let StepCommand { argv, work_dir, env, .. } = command;
        let (name, request) = self.request(argv, work_dir, env)?;
        // Without the arguments, which may contain secrets from expressions.
        debug!(program = name, "execute");
        let [out, err] = [LogStream::Out, LogStream::Err];
        let streams = [self.sink(command.output, out)?, self.sink(command.output, err)?];
        let child = self.groups.launch(&request, streams.each_ref().map(OwnedFd::as_fd));
        // The process has its own copies; a pipe ends when its last copy is closed.
        drop(streams);
        let mut child = child.map_err(process_error("cannot start the process"))?;
        let ended = self.follow(&mut child, output);
        output.flush();
        let ended = ended.map_err(process_error("cannot monitor the command"))?;
        if let Some(pid) = child.pid() {
            self.groups.leave(pid);
        }
        match ended {
            Ok(ProcessExit::Exited(0)) => Ok(()),
            Ok(ProcessExit::Exited(code)) => Err(ExecError::Exit(code.into())),
            Ok(ProcessExit::Signalled(signal)) => Err(ExecError::Signal(signal.into())),
            Err(error) => Err(not_executed(name, work_dir, &request.programs, error)),
        }
    }

    /// Returns the name of a command's program, and the request that makes the launcher execute it.
    fn request<'c>(
        &self,
        argv: &'c [String],
        work_dir: &Path,
        env: &BTreeMap<String, String>,
    ) -> Result<(&'c str, LaunchRequest), ExecError> {
        if let Some(argument) = argv.iter().find(|argument| argument.contains('\0')) {
            return Err(ExecError::Nul(format!("argument {argument:?}")));
        }
        let is_bad =
            |(name, value): &(&String, &String)| name.contains('\0') || value.contains('\0');
        if let Some((name, _)) = env.iter().find(is_bad) {
            return Err(ExecError::Nul(format!("variable {name:?}")));
        }
        let name = argv.first().expect("commands that are read have a program");
        // In the PATH of the step, not of the server.
        let path = env.get("PATH").map_or("", String::as_str);
        let programs = match name.contains('/') {
            true => ProgramPaths::Exact(bytes_of(work_dir.join(name))),
            false => ProgramPaths::Candidates(
                program_candidates(name, work_dir, path).map(bytes_of).collect(),
            ),
        };
        let mark = self.groups.mark(env.get(MARK));
        // The kernel accepts empty names and names with `=`, but programs cannot read them.
        let entries = env
            .iter()
            .filter(|(name, _)| !name.is_empty() && !name.contains('=') && *name != MARK)
            .map(|(name, value)| format!("{name}={value}"))
            .chain([format!("{}={}", mark.0, mark.1)]);
        let request = LaunchRequest {
            work_dir: bytes_of(work_dir.to_owned()),
            programs,
            argv: argv.iter().map(|argument| argument.clone().into_bytes()).collect(),
            env: entries.map(String::into_bytes).collect(),
        };
        Ok((name, request))
    }

    /// Returns the target of a command's stream: a file, or else a pipe that is forwarded to the log.
    fn sink(&mut self, file: Option<&File>, stream: LogStream) -> Result<OwnedFd, ExecError> {
        match file {
            Some(file) => file
                .try_clone()
                .map(OwnedFd::from)
                .map_err(process_error("cannot duplicate the descriptor of the output file")),
            None => self.pipes.add(stream).map_err(process_error("cannot create a pipe")),
        }
    }

    /// Runs work that may block in the kernel, and forwards output meanwhile. On cancellation or timeout,
    /// the work is interrupted; a thread that then does not return within [`INTERRUPT_TIMEOUT`] is abandoned.
    pub fn run_blocking<T: Send + 'static>(
        &mut self,
        limit: Duration,
        output: &mut dyn OutputSink,
        work: impl FnOnce(&Interrupt) -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let thread = WorkThread::take()?;
        let running = thread.run(work)?;
        let cancel = self.cancel;
        let WorkEnds { stop, deadline, .. } = self.work_ends();
        let too_late = Instant::now() + limit;
        let deadline = deadline.map_or(too_late, |ends| ends.min(too_late));
        let events: Vec<BorrowedFd<'_>> =
            [Some(running.done_fd()), Some(cancel.kill_event()), stop]
                .into_iter()
                .flatten()
                .collect();
        let why = match self.pipes.pump(&events, Some(deadline), output)? {
            PumpEvent::Readable(0) => {
                thread.return_to_pool();
                return Ok(running.take());
            }
            PumpEvent::Timeout if deadline == too_late => WorkError::TooLong(limit),
            PumpEvent::Timeout => {
                if is_over(self.deadline) && cancel.reason().is_none() {
                    cancel.stop(CancelReason::Timeout);
                }
                WorkError::Interrupted
            }
            PumpEvent::Readable(_) => WorkError::Interrupted,
        };
        running.interrupt();
        let patience = Some(Instant::now() + INTERRUPT_TIMEOUT);
        match self.pipes.pump(&[running.done_fd()], patience, output)? {
            PumpEvent::Readable(_) => Ok(running.take()),
            PumpEvent::Timeout => {
                debug!("a thread of the job does not return from a system call");
                Err(why)
            }
        }
    }

    /// Forwards output until the process has exited, and stops it on cancellation or timeout.
    fn follow(
        &mut self,
        child: &mut LaunchedChild,
        output: &mut dyn OutputSink,
    ) -> io::Result<Result<ProcessExit, LaunchError>> {
        let cancel = self.cancel;
        let WorkEnds { mut stop, mut deadline, in_cleanup } = self.work_ends();
        let mut kill_event = Some(cancel.kill_event());
        let mut may_terminate = !in_cleanup;
        loop {
            let events: Vec<BorrowedFd<'_>> =
                [Some(child.reports()), stop, kill_event].into_iter().flatten().collect();
            let event = self.pipes.pump(&events, deadline, output)?;
            let signalled = match event {
                PumpEvent::Readable(0) => {
                    let is_new = child.pid().is_none();
                    let ended = child.read()?;
                    if let Some(pid) = child.pid().filter(|_| is_new) {
                        self.groups.record(pid)?;
                    }
                    match ended {
                        Some(ended) => return self.pipes.drain(output).map(|()| ended),
                        None => continue,
                    }
                }
                // The maximum run time is over: handled as a cancellation.
                PumpEvent::Timeout if stop.is_some() && is_over(self.deadline) => {
                    cancel.stop(CancelReason::Timeout);
                    continue;
                }
                PumpEvent::Readable(1) if stop.is_some() => {
                    Some(*self.stopped.get_or_insert_with(Instant::now))
                }
                // The time limit of the command itself is over.
                PumpEvent::Timeout if may_terminate => Some(Instant::now()),
                PumpEvent::Readable(_) | PumpEvent::Timeout => None,
            };
            self.was_stopped = true;
            stop = None;
            may_terminate = false;
            deadline = signalled.map(|signalled| signalled + self.grace);
            if signalled.is_some() {
                child.signal(Signal::TERM);
            } else if kill_event.take().is_some() {
                child.signal(Signal::KILL);
                deadline = Some(Instant::now() + KILL_TIMEOUT);
            } else {
                return Err(io::Error::other("SIGKILL was sent, but the process has not exited"));
            }
        }
    }

    /// Returns whether the last command was stopped before it exited.
    pub fn was_stopped(&self) -> bool {
        self.was_stopped
    }

    /// Stops the remaining background processes of the job, in any process group.
    ///
    /// Unless the job is cancelled, their output is read first, until they close it, at most for [`LAST_OUTPUT`]:
    /// `tee` in `exec > >(tee log)` writes the last lines of a job after the shell has exited.
    pub fn end(&mut self, output: &mut dyn OutputSink) {
        let cancel = self.cancel;
        let mut is_closed = true;
        // Processes of a stopped job write their last output after SIGTERM.
        if cancel.reason().is_none() {
            let events = [cancel.stop_event(), cancel.kill_event()];
            let end = Instant::now() + LAST_OUTPUT;
            let end = self.deadline.map_or(end, |deadline| deadline.min(end));
            // An unreadable pipe is not waited for.
            is_closed = self.pipes.pump_rest(&events, end, output).unwrap_or(true);
        }
        let mut left = self.groups.remaining_processes();
        if !is_closed && cancel.reason().is_none() {
            let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let names = left
                .iter()
                .map(|process| format!("{} ({})", name(process.pid).trim(), process.pid));
            let names = names.collect::<Vec<_>>().join(", ");
            debug!("the output of the job is still open; remaining processes: {names}");
        }
        if !left.is_empty() {
            signal_all(&left, Signal::TERM);
            let now = Instant::now();
            // In a stopped job, the grace period began when its command was stopped.
            let deadline = match self.stopped {
                Some(stopped) => (stopped + self.grace).max(now + LEAST_GRACE.min(self.grace)),
                None => now + self.grace,
            };
            wait_until(deadline, |time| {
                left.retain(ProcessSnapshot::is_running);
                if left.is_empty() {
                    // Processes that were started meanwhile.
                    left = self.groups.remaining_processes();
                    signal_all(&left, Signal::TERM);
                    if left.is_empty() {
                        return true;
                    }
                }
                let next = Some(Instant::now() + time);
                let event = self.pipes.pump(&[cancel.kill_event()], next, output);
                !matches!(event, Ok(PumpEvent::Timeout))
            });
            self.groups.kill();
        }
        // Open pipes belong to processes that could not be killed: their output is no longer read.
        let _ = self.pipes.drain(output);
        output.flush();
    }
}

pub(super) fn process_error(action: &'static str) -> impl FnOnce(io::Error) -> ExecError {
    move |error| ExecError::Process { action, error }
}

/// Returns the error of a command whose program could not be executed.
fn not_executed(
    name: &str,
    work_dir: &Path,
    programs: &ProgramPaths,
    LaunchError { action, error }: LaunchError,
) -> ExecError {
    let path = |index: u16| {
        let found = programs.all().get(usize::from(index)).filter(|_| !name.contains('/'));
        found.map_or_else(|| PathBuf::from(name), |path| OsStr::from_bytes(path).into())
    };
    match action {
        LaunchAction::WorkDir => ExecError::WorkDir { path: work_dir.to_owned(), error },
        LaunchAction::Find => ExecError::NotFound(name.to_owned()),
        LaunchAction::Execute(index) => ExecError::Execute { path: path(index), error },
        LaunchAction::Fork => ExecError::Execute { path: name.into(), error },
        LaunchAction::Setup => ExecError::Process { action: "cannot prepare the process", error },
    }
}

/// Limits that [`CommandRunner::leave`] restores.
pub struct SavedLimits {
    limits: CommandLimits,
    cleanup_ends: Option<Instant>,
}

/// Conditions that stop a command, a pause, or work in another thread.
struct WorkEnds<'a> {
    /// Readable when the work has to stop; `None` if a cancellation does not stop it.
    stop: Option<BorrowedFd<'a>>,
    deadline: Option<Instant>,
    /// If set, the command gets `SIGKILL` at the deadline, without `SIGTERM`.
    in_cleanup: bool,
}

impl<'a> CommandRunner<'a> {
    fn work_ends(&self) -> WorkEnds<'a> {
        let is_spared = self.limits.cancellation == CancelEffect::None;
        match self.cleanup_ends {
            Some(end) if !is_spared => {
                WorkEnds { stop: None, deadline: Some(end), in_cleanup: true }
            }
            _ => WorkEnds {
                stop: (!is_spared).then(|| self.cancel.stop_event()),
                deadline: self.deadline.into_iter().chain(self.limits.deadline).min(),
                in_cleanup: false,
            },
        }
    }

    /// Sets the limits of commands, and returns the previous limits for [`CommandRunner::leave`].
    pub fn enter(&mut self, limits: CommandLimits) -> SavedLimits {
        let outer = SavedLimits { limits: self.limits, cleanup_ends: self.cleanup_ends };
        self.limits = limits;
        outer
    }

    /// Restores the limits that [`CommandRunner::enter`] returned.
    pub fn leave(&mut self, outer: SavedLimits) {
        self.limits = outer.limits;
        if self.cancel.reason().is_none() {
            self.cleanup_ends = outer.cleanup_ends;
        }
    }

    /// Returns the state of the job: running, or the reason to stop.
    pub fn state(&self) -> JobState {
        match self.cancel.reason() {
            _ if self.cancel.is_killed() => JobState::Killed,
            _ if is_over(self.deadline) => JobState::TimedOut,
            Some(CancelReason::Timeout) => JobState::TimedOut,
            Some(CancelReason::Requested) => JobState::Cancelled,
            None => JobState::Running,
        }
    }

    /// Forwards output for `time`, or until a cancellation or time limit at which a command would
    /// be stopped.
    pub fn pause(&mut self, time: Duration, output: &mut dyn OutputSink) {
        let WorkEnds { stop, deadline, .. } = self.work_ends();
        let end = deadline.into_iter().chain([Instant::now() + time]).min();
        let kill_event = self.cancel.kill_event();
        // After an error there is no pause, and the next command reports it.
        let _ = self.pipes.pump(&[stop.unwrap_or(kill_event), kill_event], end, output);
    }
}
