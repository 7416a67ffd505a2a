//! The command that `serve` runs beside the server.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::spawn::restore_file_limit;
use oci_hooks_host::identity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{ioctl_fionread, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use step_runner::engine::MARK;
use tokio::sync::watch;

use crate::environment::SOCKET;
use crate::error::StepRunnerError;
use crate::steps_command::ARGUMENTS;

/// Start and stop behaviour of the command beside the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompanionMode {
    /// The command starts at once, in the server's process group. Signals are forwarded to it.
    #[default]
    Beside,
    /// The command starts at the first byte of standard input, as gitlab-runner expects, in its own
    /// process group. To stop it, the group gets SIGTERM.
    AfterInput,
}

/// A command that runs beside the server, or waits for standard input before it starts. Its exit
/// stops the server.
pub struct Companion {
    control: CompanionControl,
    thread: JoinHandle<Result<CliExit, StepRunnerError>>,
}

/// A handle that stops the command of a [`Companion`].
#[derive(Clone)]
pub struct CompanionControl {
    /// Pipe for one byte: the number of the signal that stops the command.
    stop_pipe: Arc<Mutex<PipeWriter>>,
    /// Id of the process group that the command leads while it runs, or 0.
    group: Arc<AtomicI32>,
}

impl CompanionControl {
    /// Stops the command, or prevents its start.
    pub fn stop(&self, signal: i32) {
        let byte = [u8::try_from(signal).unwrap_or_default()];
        let mut stop_pipe = self.stop_pipe.lock().unwrap_or_else(PoisonError::into_inner);
        // The reading end is closed if the command has exited.
        let _ = stop_pipe.write_all(&byte);
    }

    /// Kills the process group that the command leads, if any, at once.
    pub fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.group.load(Ordering::Relaxed)) {
            // The command may have exited already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Companion {
    /// Starts the command, and a thread that stops the server when the command exits.
    pub fn start(
        words: &[OsString],
        socket: &Path,
        mode: CompanionMode,
        grace: Duration,
        server: Arc<watch::Sender<bool>>,
    ) -> Result<Option<Self>, StepRunnerError> {
        let Some((name, arguments)) = words.split_first() else { return Ok(None) };
        let mut command = Command::new(name);
        command.args(arguments).env(SOCKET, socket).env_remove(ARGUMENTS);
        // The command's leftover processes belong to no job.
        command.env(MARK, "none");
        restore_file_limit(&mut command);
        let (reader, writer) = io::pipe().map_err(StepRunnerError::Command)?;
        let group = Arc::new(AtomicI32::new(0));
        let control =
            CompanionControl { stop_pipe: Arc::new(Mutex::new(writer)), group: group.clone() };
        let mut run =
            CompanionRun { name: name.into(), command, stop_pipe: reader, group, mode, grace };
        // A command that cannot be executed is an error before the first job.
        let child = (mode == CompanionMode::Beside).then(|| run.spawn()).transpose()?;
        let thread = thread::spawn(move || {
            let result = match child {
                Some(child) => run.wait_for_command(child),
                None => run.wait_for_input(io::stdin().as_fd()),
            };
            server.send_replace(true);
            result
        });
        Ok(Some(Companion { control, thread }))
    }

    pub fn control(&self) -> CompanionControl {
        self.control.clone()
    }

    /// Stops the command if it still runs, and returns its exit code.
    pub fn end(self) -> Result<CliExit, StepRunnerError> {
        self.control.stop(Signal::TERM.as_raw());
        self.thread.join().expect("waiting does not panic")
    }
}

struct CompanionRun {
    name: PathBuf,
    command: Command,
    stop_pipe: PipeReader,
    group: Arc<AtomicI32>,
    mode: CompanionMode,
    /// Time between the stop signal and SIGKILL.
    grace: Duration,
}

impl CompanionRun {
    fn spawn(&mut self) -> Result<Child, StepRunnerError> {
        if self.mode == CompanionMode::AfterInput {
            self.command.process_group(0);
        }
        let name = self.name.clone();
        self.command.spawn().map_err(|source| StepRunnerError::Execute { name, source })
    }

    fn wait_for_input(mut self, input: BorrowedFd<'_>) -> Result<CliExit, StepRunnerError> {
        if !input_comes(input, &self.stop_pipe).map_err(StepRunnerError::Command)? {
            return Ok(CliExit::Done);
        }
        let child = self.spawn()?;
        self.wait_for_command(child)
    }

    /// Waits until the command exits or is to be stopped, and returns its exit code.
    fn wait_for_command(mut self, mut child: Child) -> Result<CliExit, StepRunnerError> {
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let process = process.map_err(|error| StepRunnerError::Command(error.into()))?;
        if self.mode == CompanionMode::AfterInput {
            self.group.store(Pid::from_child(&child).as_raw_pid(), Ordering::Relaxed);
        }
        if self.is_ordered_to_stop(&process).map_err(StepRunnerError::Command)? {
            let mut signal = [0];
            self.stop_pipe.read_exact(&mut signal).map_err(StepRunnerError::Command)?;
            let signal = Signal::from_named_raw(signal[0].into()).unwrap_or(Signal::TERM);
            self.signal(&process, signal);
            if !identity::wait(&process, self.grace).map_err(StepRunnerError::Command)? {
                self.signal(&process, Signal::KILL);
            }
        }
        // Reaping the command would free its process id, and thereby the id of its group.
        retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], None))
            .map_err(|error| StepRunnerError::Command(error.into()))?;
        self.group.store(0, Ordering::Relaxed);
        Ok(child.wait().map_err(StepRunnerError::Command)?.into())
    }

    /// Waits until the process exits or is to be stopped. Returns whether it is to be stopped.
    fn is_ordered_to_stop(&self, process: &OwnedFd) -> io::Result<bool> {
        let mut polled =
            [PollFd::new(process, PollFlags::IN), PollFd::new(&self.stop_pipe, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, None))?;
        Ok(polled[0].revents().is_empty())
    }

    /// Sends a signal to the command, or to the process group that it leads. It may have exited
    /// already.
    fn signal(&self, process: &OwnedFd, signal: Signal) {
        match (self.mode, Pid::from_raw(self.group.load(Ordering::Relaxed))) {
            (CompanionMode::AfterInput, Some(group)) => {
                let signal = if signal == Signal::KILL { signal } else { Signal::TERM };
                let _ = kill_process_group(group, signal);
            }
            _ => {
                let _ = pidfd_send_signal(process, signal);
            }
        }
    }
}

/// Waits for the first byte of the input without reading it. Returns `false` if the input ends, or a stop is ordered.
fn input_comes(input: BorrowedFd<'_>, stop_pipe: &PipeReader) -> io::Result<bool> {
    let mut polled = [PollFd::new(&input, PollFlags::IN), PollFd::new(stop_pipe, PollFlags::IN)];
    retry_on_intr(|| poll(&mut polled, None))?;
    if !polled[1].revents().is_empty() {
        return Ok(false);
    }
    // At its end a file is readable too. Input that does not report its size, such as `/dev/null`, counts as empty.
    let has_bytes = ioctl_fionread(input).is_ok_and(|count| count > 0);
    Ok(polled[0].revents().contains(PollFlags::IN) && has_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Seek as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn first_byte_is_waited_for_and_not_consumed() {
        let (_orders, ordered) = io::pipe().map(|(reader, writer)| (writer, reader)).unwrap();
        let (mut input, mut writer) = io::pipe().unwrap();
        let waiting = thread::spawn({
            let input = input.try_clone().unwrap();
            move || (input_comes(input.as_fd(), &ordered).unwrap(), ordered)
        });
        writer.write_all(b"x").unwrap();
        let (came, ordered) = waiting.join().unwrap();
        assert!(came);
        drop(writer);
        // The byte stays readable after the other end is closed.
        assert!(input_comes(input.as_fd(), &ordered).unwrap());
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert!(!input_comes(input.as_fd(), &ordered).unwrap());
    }

    #[test]
    fn closed_input_or_a_stop_ends_the_wait_without_a_byte() {
        let (mut order, ordered) = io::pipe().map(|(reader, writer)| (writer, reader)).unwrap();
        let null = File::open("/dev/null").unwrap();
        assert!(!input_comes(null.as_fd(), &ordered).unwrap());
        let mut file = tempfile::tempfile().unwrap();
        assert!(!input_comes(file.as_fd(), &ordered).unwrap());
        file.write_all(b"x").unwrap();
        file.rewind().unwrap();
        assert!(input_comes(file.as_fd(), &ordered).unwrap());
        let (socket, other) = UnixStream::pair().unwrap();
        drop(other);
        assert!(!input_comes(socket.as_fd(), &ordered).unwrap());
        let (mut silent, _open) = UnixStream::pair().unwrap();
        order.write_all(&[15]).unwrap();
        assert!(!input_comes(silent.as_fd(), &ordered).unwrap());
        silent.flush().unwrap();
    }
}
