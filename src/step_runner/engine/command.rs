//! Running one command: start, output, cancellation.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use tracing::debug;

use super::super::builtin::{Cancellation, Command, JobState, Limits, find_program};
use super::super::log::{Output, Stream};
use super::super::resolve::Interrupt;
use super::cancel::{Cancel, Reason};
use super::error::ExecError;
use super::family::{Groups, MARK, signal_all, wait_until};
use super::phase::{PATIENCE, Phase, PhaseError};
use super::pump::{Pipes, PumpEvent, is_over};
use crate::sys::orphans::Awaited;
use crate::sys::processes::Process;
use crate::sys::spawn::enter_cgroup;

/// Time limit for executing a program, which takes long only where a mount does not answer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long processes in the background have after `SIGTERM` if the grace is over by then.
const LEAST_GRACE: Duration = Duration::from_secs(1);

/// The processes of a job.
pub struct Processes<'a> {
    pipes: Pipes,
    groups: Groups,
    cancel: &'a Cancel,
    grace: Duration,
    /// When the maximum run time of the job is over.
    deadline: Option<Instant>,
    /// When cleanup steps are killed; `None` before a cancellation.
    cleanup_ends: Option<Instant>,
    /// When a command was stopped first.
    stopped: Option<Instant>,
    /// Limits of commands, besides those of the job.
    limits: Limits,
    /// Whether the last command was stopped before it exited.
    was_stopped: bool,
}

impl<'a> Processes<'a> {
    pub(super) fn new(
        groups: Groups,
        cancel: &'a Cancel,
        grace: Duration,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        Ok(Processes {
            pipes: Pipes::new()?,
            groups,
            cancel,
            grace,
            deadline,
            cleanup_ends: None,
            stopped: None,
            limits: Limits::default(),
            was_stopped: false,
        })
    }

    /// Returns whether the job is cancelled. From then on, steps have the time `cleanup`.
    pub fn is_cancelled(&mut self, cleanup: Duration) -> bool {
        if is_over(self.deadline) && self.cancel.reason().is_none() {
            self.cancel.cancel(Reason::Timeout);
        }
        let is_cancelled = self.cancel.reason().is_some() || is_over(self.limits.deadline);
        if is_cancelled && self.cleanup_ends.is_none() {
            self.cleanup_ends = Some(Instant::now() + cleanup);
        }
        is_cancelled
    }

    /// Runs a command until it exits. It is stopped when the job is cancelled; a cleanup step, when the
    /// time for cleanup is over.
    pub fn run(&mut self, command: &Command<'_>, output: &mut dyn Output) -> Result<(), ExecError> {
        self.was_stopped = false;
        let mut child = self.start(command, output)?;
        let pid = Pid::from_child(&child);
        let _awaited = Awaited::new(child.id());
        let status = self.follow(pid, output).and_then(|()| child.wait());
        if status.is_err() {
            kill(pid, Signal::KILL);
        }
        output.flush();
        let status = status.map_err(follow("cannot follow the process"))?;
        self.groups.leave(pid);
        ended(status)
    }

    fn start(
        &mut self,
        command: &Command<'_>,
        output: &mut dyn Output,
    ) -> Result<Child, ExecError> {
        let Command { argv, env, .. } = command;
        if let Some(argument) = argv.iter().find(|argument| argument.contains('\0')) {
            return Err(ExecError::Nul(format!("argument {argument:?}")));
        }
        let is_bad =
            |(name, value): &(&String, &String)| name.contains('\0') || value.contains('\0');
        if let Some((name, _)) = env.iter().find(is_bad) {
            return Err(ExecError::Nul(format!("variable {name:?}")));
        }
        let start = Start {
            argv: argv.to_vec(),
            work_dir: command.work_dir.to_owned(),
            // The kernel accepts other entries, but no program can read them.
            env: env
                .iter()
                .filter(|(name, _)| !name.is_empty() && !name.contains('='))
                .map(|(name, value)| (name.clone(), value.clone()))
                .chain([self.groups.mark(env.get(MARK))])
                .collect(),
            cgroup: self.groups.cgroup(),
            out: self.sink(command.output, Stream::Out)?,
            err: self.sink(command.output, Stream::Err)?,
        };
        let program = argv.first().cloned().unwrap_or_default();
        let started = self.beside(START_LIMIT, output, move |_| start.spawn());
        let mut started = started.map_err(|phase| ExecError::Phase { program, phase })??;
        let child = started.0.as_mut().expect("it is taken below");
        let recorded = self.groups.record(Pid::from_child(child));
        recorded.map_err(follow("cannot follow the process"))?;
        Ok(started.0.take().expect("it is taken once"))
    }

    /// Returns what a stream of a command goes to: a file, or else a pipe that is forwarded to the log.
    fn sink(&mut self, file: Option<&File>, stream: Stream) -> Result<OwnedFd, ExecError> {
        match file {
            Some(file) => {
                file.try_clone().map(OwnedFd::from).map_err(follow("cannot share a file"))
            }
            None => self.pipes.add(stream).map_err(follow("cannot make a pipe")),
        }
    }

    /// Returns where a function of this program writes its log.
    pub fn log_of_function(&mut self, stream: Stream) -> io::Result<File> {
        Ok(self.pipes.add(stream)?.into())
    }

    /// Forwards the rest of what a function wrote.
    pub fn hear_function(&mut self, output: &mut dyn Output) {
        // What could not be read of its log does not change what it did.
        let _ = self.pipes.drain(output);
        output.flush();
    }

    /// Does work that may block in the kernel, and forwards output meanwhile. When the job is cancelled, or
    /// the time is over, the work is told so, and left alone if it does not return in a moment.
    pub fn beside<T: Send + 'static>(
        &mut self,
        limit: Duration,
        output: &mut dyn Output,
        work: impl FnOnce(&Interrupt) -> T + Send + 'static,
    ) -> Result<T, PhaseError> {
        let phase = Phase::start(work)?;
        let cancel = self.cancel;
        let Ends { stop, deadline, .. } = self.ends();
        let too_late = Instant::now() + limit;
        let deadline = deadline.map_or(too_late, |ends| ends.min(too_late));
        let events: Vec<BorrowedFd<'_>> =
            [Some(phase.done()), Some(cancel.kill_event()), stop].into_iter().flatten().collect();
        let why = match self.pipes.pump(&events, Some(deadline), output)? {
            PumpEvent::Readable(0) => return Ok(phase.take()),
            PumpEvent::Timeout if deadline == too_late => PhaseError::TooLong(limit),
            PumpEvent::Timeout => {
                if is_over(self.deadline) && cancel.reason().is_none() {
                    cancel.cancel(Reason::Timeout);
                }
                PhaseError::Interrupted
            }
            PumpEvent::Readable(_) => PhaseError::Interrupted,
        };
        phase.interrupt();
        let patience = Some(Instant::now() + PATIENCE);
        match self.pipes.pump(&[phase.done()], patience, output)? {
            PumpEvent::Readable(_) => Ok(phase.take()),
            PumpEvent::Timeout => {
                debug!("a thread is left that does not return from the kernel");
                Err(why)
            }
        }
    }

    /// Forwards output until the process has exited, and stops it on cancellation or timeout.
    fn follow(&mut self, pid: Pid, output: &mut dyn Output) -> io::Result<()> {
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let cancel = self.cancel;
        let Ends { mut stop, mut deadline, in_cleanup } = self.ends();
        let mut kill_event = Some(cancel.kill_event());
        let mut may_terminate = !in_cleanup;
        loop {
            let events: Vec<BorrowedFd<'_>> =
                [Some(process.as_fd()), stop, kill_event].into_iter().flatten().collect();
            let event = self.pipes.pump(&events, deadline, output)?;
            let signalled = match event {
                PumpEvent::Readable(0) => return self.pipes.drain(output),
                // The maximum run time is over: handled as a cancellation.
                PumpEvent::Timeout if stop.is_some() && is_over(self.deadline) => {
                    cancel.cancel(Reason::Timeout);
                    continue;
                }
                PumpEvent::Readable(1) if stop.is_some() => {
                    Some(*self.stopped.get_or_insert_with(Instant::now))
                }
                // Its own time is over.
                PumpEvent::Timeout if may_terminate => Some(Instant::now()),
                PumpEvent::Readable(_) | PumpEvent::Timeout => None,
            };
            self.was_stopped = true;
            stop = None;
            may_terminate = false;
            deadline = signalled.map(|signalled| signalled + self.grace);
            if signalled.is_some() {
                kill(pid, Signal::TERM);
            } else {
                kill(pid, Signal::KILL);
                kill_event = None;
            }
        }
    }

    /// Returns whether the last command was stopped before it exited.
    pub fn was_stopped(&self) -> bool {
        self.was_stopped
    }

    /// Stops the background processes that commands left, wherever they went.
    ///
    /// Their output is read first, until it pauses: otherwise the last lines of a job would depend on luck, as
    /// `tee` in `exec > >(tee log)` writes them after the shell has exited.
    pub fn end(&mut self, output: &mut dyn Output) {
        let cancel = self.cancel;
        // What a stopped job has to say, it says when it gets SIGTERM.
        if cancel.reason().is_none() {
            let events = [cancel.stop_event(), cancel.kill_event()];
            // A process that waits for a CPU may be about to write.
            let is_busy = || self.groups.left().iter().any(Process::is_busy);
            // Where nothing can be read, nothing is waited for.
            let _ = self.pipes.pump_rest(&events, self.deadline, &is_busy, output);
        }
        let mut left = self.groups.left();
        if !left.is_empty() {
            signal_all(&left, Signal::TERM);
            let now = Instant::now();
            // Of a job that is stopped, its command had that time already.
            let deadline = match self.stopped {
                Some(stopped) => (stopped + self.grace).max(now + LEAST_GRACE.min(self.grace)),
                None => now + self.grace,
            };
            wait_until(deadline, |time| {
                left.retain(Process::is_running);
                if left.is_empty() {
                    // What they started meanwhile.
                    left = self.groups.left();
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
        // Open pipes belong to processes that could not be ended: their output is no longer read.
        let _ = self.pipes.drain(output);
        output.flush();
    }
}

/// A command to execute, which is its own: whoever executes it may be left alone.
struct Start {
    argv: Vec<String>,
    work_dir: PathBuf,
    env: BTreeMap<String, String>,
    cgroup: Option<OwnedFd>,
    out: OwnedFd,
    err: OwnedFd,
}

/// A command that was executed. It is killed unless it is taken.
struct Started(Option<Child>);

impl Start {
    fn spawn(self) -> Result<Started, ExecError> {
        let Start { argv, work_dir, env, cgroup, out, err } = self;
        check_dir(&work_dir)
            .map_err(|error| ExecError::WorkDir { path: work_dir.clone(), error })?;
        let (name, arguments) = argv.split_first().expect("commands that are read have a program");
        let path = find(name, &work_dir, env.get("PATH").map_or("", String::as_str))?;
        // Not its arguments: expressions put secrets there.
        debug!(program = %path.display(), "execute");
        let mut command = std::process::Command::new(&path);
        command
            .arg0(name)
            .args(arguments)
            .env_clear()
            .envs(&env)
            .current_dir(&work_dir)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        if let Some(procs) = cgroup {
            enter_cgroup(&mut command, procs);
        }
        let child = command.spawn().map_err(|error| {
            let path = if name.contains('/') { PathBuf::from(name) } else { path };
            ExecError::Execute { path, error }
        })?;
        Ok(Started(Some(child)))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            kill(Pid::from_child(child), Signal::KILL);
            // Its status is known: it was just killed.
            let _ = child.wait();
        }
    }
}

pub(super) fn follow(action: &'static str) -> impl FnOnce(io::Error) -> ExecError {
    move |error| ExecError::Follow { action, error }
}

fn kill(pid: Pid, signal: Signal) {
    // Both, as it may have moved to another group; an error means that no process is left.
    let _ = kill_process_group(pid, signal);
    let _ = kill_process(pid, signal);
}

fn ended(status: ExitStatus) -> Result<(), ExecError> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(ExecError::Exit(code)),
        (None, signal) => Err(ExecError::Signal(signal.unwrap_or_default())),
    }
}

fn check_dir(path: &Path) -> io::Result<()> {
    match path.metadata()?.is_dir() {
        true => Ok(()),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    }
}

/// Resolves a program name in the PATH of the step, not of the server.
fn find(name: &str, work_dir: &Path, path: &str) -> Result<PathBuf, ExecError> {
    if name.contains('/') {
        return Ok(work_dir.join(name));
    }
    find_program(name, work_dir, path).ok_or_else(|| ExecError::NotFound(name.to_owned()))
}

/// Limits to return to.
pub struct Outer {
    limits: Limits,
    cleanup_ends: Option<Instant>,
}

/// What ends the work that is being done.
struct Ends<'a> {
    /// Readable when it has to stop, if it does that on a cancellation.
    stop: Option<BorrowedFd<'a>>,
    deadline: Option<Instant>,
    /// Whether it had its time when the deadline is over, and is killed without more ado.
    in_cleanup: bool,
}

impl<'a> Processes<'a> {
    fn ends(&self) -> Ends<'a> {
        let is_spared = self.limits.cancellation == Cancellation::Spares;
        match self.cleanup_ends {
            Some(end) if !is_spared => Ends { stop: None, deadline: Some(end), in_cleanup: true },
            _ => Ends {
                stop: (!is_spared).then(|| self.cancel.stop_event()),
                deadline: self.deadline.into_iter().chain(self.limits.deadline).min(),
                in_cleanup: false,
            },
        }
    }

    /// Sets limits for commands until [`Processes::leave`].
    pub fn enter(&mut self, limits: Limits) -> Outer {
        let outer = Outer { limits: self.limits, cleanup_ends: self.cleanup_ends };
        self.limits = limits;
        outer
    }

    /// Sets the limits from before [`Processes::enter`].
    pub fn leave(&mut self, outer: Outer) {
        self.limits = outer.limits;
        if self.cancel.reason().is_none() {
            self.cleanup_ends = outer.cleanup_ends;
        }
    }

    /// Returns whether commands may still run.
    pub fn state(&self) -> JobState {
        match self.cancel.reason() {
            _ if self.cancel.is_killed() => JobState::Killed,
            _ if is_over(self.deadline) => JobState::TimedOut,
            Some(Reason::Timeout) => JobState::TimedOut,
            Some(Reason::Asked) => JobState::Cancelled,
            None => JobState::Running,
        }
    }

    /// Forwards output for some time, or until a command would have to stop.
    pub fn pause(&mut self, time: Duration, output: &mut dyn Output) {
        let Ends { stop, deadline, .. } = self.ends();
        let end = deadline.into_iter().chain([Instant::now() + time]).min();
        let kill_event = self.cancel.kill_event();
        // Without a pause, what comes next reports what is wrong.
        let _ = self.pipes.pump(&[stop.unwrap_or(kill_event), kill_event], end, output);
    }
}
