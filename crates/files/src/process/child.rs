//! A child that leads its own process group and never outlives its handle, and the non-blocking ends of its
//! standard streams.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use tracing::debug;

use crate::spawn;

use super::{ChildProgram, ChildStreams, OutputLimit, PollDeadline};

/// Default capacity of a pipe: one read empties the pipe.
const BUFFER_BYTES: usize = 64 << 10;

/// A running child. Dropping it kills its process group and waits for it.
pub struct ProgramChild {
    child: std::process::Child,
    pid: Pid,
    /// Readable when the child has exited; `None` once the exit was noticed.
    pidfd: Option<OwnedFd>,
    /// Set until the child is reaped; its PID is valid, and may be killed, until then.
    unreaped: bool,
}

impl ProgramChild {
    pub(super) fn spawn(program: &ChildProgram<'_>) -> io::Result<Self> {
        // `Command` does not specify the directory that a relative path starts at, and searches `PATH` for
        // a path without a slash.
        let path = std::path::absolute(program.cwd.join(program.path))?;
        let (arg0, args) = match program.argv.split_first() {
            Some((arg0, args)) => (*arg0, args),
            None => (program.path.as_os_str(), &[][..]),
        };
        // An entry without a name is of no use to any program.
        let env = program.env.iter().filter(|(name, _)| !name.is_empty());
        // `PATH` in `env` does not matter: with a slash in the path the program is not searched
        // for, and `posix_spawn` runs no shell for a file the kernel cannot execute.
        let mut command = Command::new(path);
        command
            .arg0(arg0)
            .args(args)
            .env_clear()
            .envs(env.copied())
            .current_dir(program.cwd)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(bytes) = program.max_file_bytes {
            spawn::limit_file_size(&mut command, bytes);
        }
        if program.dies_with_us {
            spawn::die_with_us(&mut command);
        }
        // Arguments are not logged: they may contain users' passwords.
        debug!(program = %program.path.display(), "execute");
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let mut child = ProgramChild { child, pid, pidfd: None, unreaped: true };
        child.pidfd = Some(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(child)
    }

    /// Takes the parent's ends of the child's pipes.
    pub fn open_streams<'a>(&mut self, program: &ChildProgram<'a>) -> io::Result<ChildStreams<'a>> {
        let gone = || io::Error::other("a standard stream of the program has no pipe");
        let stdin = self.child.stdin.take().ok_or_else(gone)?;
        let stdout = self.child.stdout.take().ok_or_else(gone)?;
        let stderr = self.child.stderr.take().ok_or_else(gone)?;
        Ok(ChildStreams {
            stdin: StdinPipe::new(stdin.into(), program.stdin)?,
            stdout: OutputPipe::new(stdout.into(), program.stdout)?,
            stderr: OutputPipe::new(stderr.into(), program.stderr)?,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Returns the pidfd, which is readable once the child has exited, until the exit was noticed.
    pub fn pidfd(&self) -> Option<&OwnedFd> {
        self.pidfd.as_ref()
    }

    pub(super) fn set_exited(&mut self) {
        self.pidfd = None;
    }

    pub(super) fn has_exited(&self) -> bool {
        self.pidfd.is_none()
    }

    /// Kills the child and everything in its process group.
    pub fn kill(&self) {
        // Both, as the child may have moved itself into another group. A failure means that no process
        // is left or that killing it is not permitted; nothing more can be done.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Waits for the child's exit and returns whether it came before the deadline.
    pub fn wait_for_exit(&mut self, deadline: PollDeadline) -> io::Result<bool> {
        while let Some(pidfd) = &self.pidfd {
            match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], deadline.time_left().as_ref()) {
                Ok(0) => return Ok(false),
                Err(Errno::INTR) => {}
                Ok(_) => self.pidfd = None,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Returns the status of a child that has exited.
    pub fn reap(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.unreaped = false;
        Ok(status)
    }

    /// Drops the handle without waiting for the child, for a child that does not end after [`kill`](Self::kill).
    pub fn abandon_child(mut self) {
        self.unreaped = false;
    }
}

impl Drop for ProgramChild {
    fn drop(&mut self) {
        if self.unreaped {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// The writing end of standard input, with the bytes that are still to be written.
pub struct StdinPipe<'a> {
    pub pipe: Option<OwnedFd>,
    rest: &'a [u8],
}

impl<'a> StdinPipe<'a> {
    pub(super) fn new(pipe: OwnedFd, bytes: &'a [u8]) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        // Without bytes the pipe closes here, so that the program reads EOF.
        Ok(StdinPipe { pipe: (!bytes.is_empty()).then_some(pipe), rest: bytes })
    }

    /// Writes as much as the pipe takes, and closes it after the last byte or when it has no reader.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::write(pipe, self.rest) {
            Ok(written) => self.rest = &self.rest[written..],
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A program need not read its input.
            Err(Errno::PIPE) => self.rest = &[],
            Err(error) => return Err(error.into()),
        }
        if self.rest.is_empty() {
            self.pipe = None;
        }
        Ok(())
    }
}

/// The reading end of an output stream, with the bytes that were read from it.
pub struct OutputPipe {
    pub pipe: Option<OwnedFd>,
    pub bytes: Vec<u8>,
    /// Set if the program wrote more than the limit.
    pub exceeded: bool,
    limit: OutputLimit,
}

impl OutputPipe {
    pub(super) fn new(pipe: OwnedFd, limit: OutputLimit) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(OutputPipe { pipe: Some(pipe), bytes: Vec::new(), exceeded: false, limit })
    }

    /// Reads once, keeps the bytes within the limit, and closes the pipe at EOF.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.keep(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn keep(&mut self, read: &[u8]) {
        let (OutputLimit::Kill(limit) | OutputLimit::Truncate(limit)) = self.limit;
        let room = usize::try_from(limit).unwrap_or(usize::MAX) - self.bytes.len();
        self.exceeded |= read.len() > room;
        self.bytes.extend_from_slice(&read[..read.len().min(room)]);
    }

    /// Returns whether the program has to be killed because it wrote more than an [`OutputLimit::Kill`].
    pub(super) fn requires_kill(&self) -> bool {
        self.exceeded && matches!(self.limit, OutputLimit::Kill(_))
    }
}
