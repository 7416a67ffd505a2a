//! The command that runs beside the server.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oci_hooks::step_runner::engine::MARK;
use oci_hooks::sys::identity;
use oci_hooks::sys::orphans::Awaited;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{ioctl_fionread, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use crate::Exit;
use crate::environment::SOCKET;
use crate::error::Error;
use crate::steps_command::ARGUMENTS;

/// How the command is started and stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// At once, in our process group; signals are forwarded to it.
    #[default]
    Beside,
    /// As gitlab-runner expects: when the first byte of standard input has come, in a process group of its
    /// own, which gets SIGTERM.
    AfterInput,
}

/// A command that runs, or waits for input. When it ends, the server is stopped.
pub struct Companion {
    control: Control,
    thread: JoinHandle<Result<Exit, Error>>,
}

/// Stops the command.
#[derive(Clone)]
pub struct Control {
    /// Takes one byte, the signal that stops the command.
    orders: Arc<Mutex<PipeWriter>>,
    /// The process group of the command while it runs.
    group: Arc<AtomicI32>,
}

impl Control {
    /// Stops the command, or keeps it from being started.
    pub fn stop(&self, signal: i32) {
        let byte = [u8::try_from(signal).unwrap_or_default()];
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // The other end is gone if the command has ended.
        let _ = orders.write_all(&byte);
    }

    /// Kills the process group of the command at once.
    pub fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.group.load(Ordering::Relaxed)) {
            // It may have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Companion {
    /// Starts the command in a thread that stops the server when the command has ended.
    pub fn start(
        words: &[OsString],
        socket: &Path,
        mode: Mode,
        grace: Duration,
        server: Arc<watch::Sender<bool>>,
    ) -> Result<Option<Self>, Error> {
        let Some((name, arguments)) = words.split_first() else { return Ok(None) };
        let mut command = Command::new(name);
        command.args(arguments).env(SOCKET, socket).env_remove(ARGUMENTS);
        // What it leaves is no job's.
        command.env(MARK, "none");
        let (reader, writer) = io::pipe().map_err(Error::Command)?;
        let group = Arc::new(AtomicI32::new(0));
        let control = Control { orders: Arc::new(Mutex::new(writer)), group: group.clone() };
        let mut run = Run { name: name.into(), command, orders: reader, group, mode, grace };
        // What cannot be executed is an error before the first job.
        let child = (mode == Mode::Beside).then(|| run.spawn()).transpose()?;
        let thread = thread::spawn(move || {
            let result = match child {
                Some(child) => run.attend(child),
                None => run.after_input(io::stdin().as_fd()),
            };
            server.send_replace(true);
            result
        });
        Ok(Some(Companion { control, thread }))
    }

    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Stops the command if it still runs, and returns its exit code.
    pub fn end(self) -> Result<Exit, Error> {
        self.control.stop(Signal::TERM.as_raw());
        self.thread.join().expect("waiting does not panic")
    }
}

struct Run {
    name: PathBuf,
    command: Command,
    orders: PipeReader,
    group: Arc<AtomicI32>,
    mode: Mode,
    /// Time between the signal and SIGKILL.
    grace: Duration,
}

impl Run {
    fn spawn(&mut self) -> Result<Child, Error> {
        if self.mode == Mode::AfterInput {
            self.command.process_group(0);
        }
        let name = self.name.clone();
        self.command.spawn().map_err(|source| Error::Execute { name, source })
    }

    fn after_input(mut self, input: BorrowedFd<'_>) -> Result<Exit, Error> {
        if !input_comes(input, &self.orders).map_err(Error::Command)? {
            return Ok(Exit::Done);
        }
        let child = self.spawn()?;
        self.attend(child)
    }

    /// Waits for the command, or for the order to stop it. Returns its exit code.
    fn attend(mut self, mut child: Child) -> Result<Exit, Error> {
        let _awaited = Awaited::new(child.id());
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let process = process.map_err(|error| Error::Command(error.into()))?;
        if self.mode == Mode::AfterInput {
            self.group.store(Pid::from_child(&child).as_raw_pid(), Ordering::Relaxed);
        }
        if self.is_ordered_to_stop(&process).map_err(Error::Command)? {
            let mut signal = [0];
            self.orders.read_exact(&mut signal).map_err(Error::Command)?;
            let signal = Signal::from_named_raw(signal[0].into()).unwrap_or(Signal::TERM);
            self.signal(&process, signal);
            if !identity::wait(&process, self.grace).map_err(Error::Command)? {
                self.signal(&process, Signal::KILL);
            }
        }
        // Waiting for it frees its number, which is that of its group.
        retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], None))
            .map_err(|error| Error::Command(error.into()))?;
        self.group.store(0, Ordering::Relaxed);
        let status = child.wait().map_err(Error::Command)?;
        // As shells do: 128 + signal for a killed process.
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Ok(Exit::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }

    /// Waits until the process has ended, or shall be stopped.
    fn is_ordered_to_stop(&self, process: &OwnedFd) -> io::Result<bool> {
        let mut polled =
            [PollFd::new(process, PollFlags::IN), PollFd::new(&self.orders, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, None))?;
        Ok(polled[0].revents().is_empty())
    }

    /// Signals the command, or its process group if it has one of its own. It may have ended already.
    fn signal(&self, process: &OwnedFd, signal: Signal) {
        match (self.mode, Pid::from_raw(self.group.load(Ordering::Relaxed))) {
            (Mode::AfterInput, Some(group)) => {
                let signal = if signal == Signal::KILL { signal } else { Signal::TERM };
                let _ = kill_process_group(group, signal);
            }
            _ => {
                let _ = pidfd_send_signal(process, signal);
            }
        }
    }
}

/// Waits for the first byte of the input without reading it. Returns `false` if the input ends first, or if
/// there is an order.
fn input_comes(input: BorrowedFd<'_>, orders: &PipeReader) -> io::Result<bool> {
    let mut polled = [PollFd::new(&input, PollFlags::IN), PollFd::new(orders, PollFlags::IN)];
    retry_on_intr(|| poll(&mut polled, None))?;
    if !polled[1].revents().is_empty() {
        return Ok(false);
    }
    // The end of a file is readable too. What does not say how much it has, such as /dev/null, has nothing.
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
    fn the_first_byte_is_waited_for_and_left() {
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
        // It is there after the other end is closed, too.
        assert!(input_comes(input.as_fd(), &ordered).unwrap());
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert!(!input_comes(input.as_fd(), &ordered).unwrap());
    }

    #[test]
    fn an_input_that_ends_or_an_order_is_no_byte() {
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
