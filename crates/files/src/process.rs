//! Child processes with deadlines: [`ChildProgram::run`] writes a program's input, reads its output, and
//! kills its process group when it takes too long or writes too much.
//!
//! All of this is done by one `poll` loop in one thread, so a program that does not read, does not stop
//! writing, or closes its pipes early cannot block the caller. Programs are never searched for in `PATH`.

mod child;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::debug;

use child::{OutputPipe, ProgramChild, StdinPipe};

/// Time that a killed program may take to die. A program that takes longer hangs in the kernel, as on a
/// dead network mount, and waiting for it would hang this process too.
const POST_KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A program to run, with its arguments, environment, input and limits.
///
/// ```
/// use std::path::Path;
/// use oci_hooks_files::process::{ChildProgram, ProgramEnd};
///
/// let mut program = ChildProgram::new(Path::new("/bin/cat"), Path::new("/"));
/// program.stdin = b"hello";
/// let finished = program.run()?;
/// assert_eq!(finished.end, ProgramEnd::Exited(0));
/// assert_eq!(finished.stdout, b"hello");
/// # Ok::<(), oci_hooks_files::process::RunError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChildProgram<'a> {
    /// The file to execute; a relative path, even without a slash, is relative to `cwd`.
    pub path: &'a Path,
    /// The argument vector, including `argv[0]`; if empty, the program gets its path as `argv[0]`.
    pub argv: Vec<&'a OsStr>,
    /// The whole environment; the last of several entries with the same name is used.
    pub env: Vec<(&'a OsStr, &'a OsStr)>,
    pub cwd: &'a Path,
    /// Content of standard input. A program that does not read it is not an error.
    pub stdin: &'a [u8],
    /// Time until the whole process group is killed; `None` means no limit, zero kills at once.
    pub timeout: Option<Duration>,
    /// A descriptor that becomes and stays readable once the whole process group is to be killed.
    pub interrupt: Option<BorrowedFd<'a>>,
    pub stdout: OutputLimit,
    pub stderr: OutputLimit,
    /// Maximum size of a file that the program writes (`RLIMIT_FSIZE`); SIGXFSZ ends a program that exceeds it.
    pub max_file_bytes: Option<u64>,
    /// If set, the kernel kills the program as soon as the calling thread ends. Its children are not killed.
    pub dies_with_us: bool,
}

/// Size limit of an output stream, and the treatment of a program that writes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputLimit {
    /// The program is killed once it wrote more than this many bytes.
    Kill(u64),
    /// The first bytes are kept, up to this many, and the rest is read and dropped.
    Truncate(u64),
}

/// The result of running a [`ChildProgram`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedProgram {
    pub end: ProgramEnd,
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Set if standard output exceeded the limit.
    pub stdout_truncated: bool,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Set if standard error exceeded the limit.
    pub stderr_truncated: bool,
    /// The time from before the start until the process was reaped.
    pub duration: Duration,
}

/// The way in which a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    /// The program exited with this code.
    Exited(i32),
    /// A signal ended the program; [`ChildProgram::run`] did not send it.
    Signaled(i32),
    /// The program, or a descendant that held its standard output, was killed at the deadline, or because
    /// [`ChildProgram::interrupt`] was readable.
    TimedOut,
    /// The program was killed because it wrote more than an [`OutputLimit::Kill`] allows.
    OutputTooLarge,
}

impl fmt::Display for ProgramEnd {
    /// Writes the end for messages: "exited with code 1", "timed out".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramEnd::Exited(code) => write!(f, "exited with code {code}"),
            ProgramEnd::Signaled(signal) => write!(f, "killed by signal {signal}"),
            ProgramEnd::TimedOut => f.write_str("timed out"),
            ProgramEnd::OutputTooLarge => f.write_str("wrote too much output"),
        }
    }
}

/// Errors of running a program.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program could not be executed, or its working directory could not be entered.
    #[error("cannot execute {}", path.display())]
    Execute {
        /// The program's path as given in [`ChildProgram::path`].
        path: PathBuf,
        source: io::Error,
    },
    /// The program started, but reading its output or waiting for it failed; it has been killed.
    #[error("cannot read the output of {} or wait for its end", path.display())]
    Follow {
        /// The program's path as given in [`ChildProgram::path`].
        path: PathBuf,
        source: io::Error,
    },
    /// The program was killed, but hangs in the kernel.
    #[error(
        "{} has not ended {} seconds after it was killed", path.display(),
        POST_KILL_TIMEOUT.as_secs()
    )]
    Unkillable {
        /// The program's path as given in [`ChildProgram::path`].
        path: PathBuf,
    },
}

impl<'a> ChildProgram<'a> {
    /// Returns a program with no arguments, no environment, no input, no deadline, 16 MiB of
    /// standard output and 64 KiB of standard error.
    pub fn new(path: &'a Path, cwd: &'a Path) -> Self {
        ChildProgram {
            path,
            argv: Vec::new(),
            env: Vec::new(),
            cwd,
            stdin: &[],
            timeout: None,
            interrupt: None,
            stdout: OutputLimit::Kill(16 << 20),
            stderr: OutputLimit::Truncate(64 << 10),
            max_file_bytes: None,
            dies_with_us: false,
        }
    }

    /// Runs the program until it has exited and no process holds its standard output open.
    ///
    /// Go's `os/exec`, with which podman and runc run hooks, waits for a background process that
    /// inherited standard output, without a limit if there is no timeout; so does this function. A
    /// background process that holds only standard error does not delay the end. Remaining processes
    /// of the process group live on after a normal end, and are killed at the deadline, when a
    /// limit is exceeded, and on every error.
    ///
    /// `SIGPIPE` has its default action in the program; the signal mask and ignored signals are
    /// inherited from the calling thread, as they are from runc.
    pub fn run(&self) -> Result<FinishedProgram, RunError> {
        let start = Instant::now();
        let deadline = self.timeout.map_or(PollDeadline(None), PollDeadline::after);
        let mut child = ProgramChild::spawn(self)
            .map_err(|source| RunError::Execute { path: self.path.to_owned(), source })?;
        let follow = |source| RunError::Follow { path: self.path.to_owned(), source };
        let mut streams = child.open_streams(self).map_err(follow)?;

        let stop = streams.pump(&mut child, deadline, self.interrupt).map_err(follow)?;
        if stop != PumpStop::Finished {
            child.kill();
            if !child.wait_for_exit(PollDeadline::after(POST_KILL_TIMEOUT)).map_err(follow)? {
                child.abandon_child();
                return Err(RunError::Unkillable { path: self.path.to_owned() });
            }
        }
        streams.take_what_is_left().map_err(follow)?;
        let status = child.reap().map_err(follow)?;
        debug!(program = %self.path.display(), %status, duration = ?start.elapsed(), "ended");
        Ok(FinishedProgram {
            end: match stop {
                PumpStop::Deadline => ProgramEnd::TimedOut,
                PumpStop::Finished if !streams.has_excess_output() => ProgramEnd::from(status),
                PumpStop::Finished | PumpStop::TooMuch => ProgramEnd::OutputTooLarge,
            },
            stdout: streams.stdout.bytes,
            stdout_truncated: streams.stdout.exceeded,
            stderr: streams.stderr.bytes,
            stderr_truncated: streams.stderr.exceeded,
            duration: start.elapsed(),
        })
    }
}

impl From<ExitStatus> for ProgramEnd {
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => ProgramEnd::Exited(code),
            None => {
                ProgramEnd::Signaled(status.signal().expect("a process without code had a signal"))
            }
        }
    }
}

/// The reason that [`ChildStreams::pump`] returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PumpStop {
    Finished,
    Deadline,
    TooMuch,
}

/// The parent's ends of a program's standard streams.
struct ChildStreams<'a> {
    stdin: StdinPipe<'a>,
    stdout: OutputPipe,
    stderr: OutputPipe,
    buffer: Vec<u8>,
}

impl ChildStreams<'_> {
    /// Moves bytes until the program has ended, the deadline is over, the interrupt is readable, or the
    /// program wrote too much.
    fn pump(
        &mut self,
        child: &mut ProgramChild,
        deadline: PollDeadline,
        interrupt: Option<BorrowedFd<'_>>,
    ) -> io::Result<PumpStop> {
        while !(child.has_exited() && self.stdout.pipe.is_none()) {
            // Read before the poll: this process may be stopped for longer than the timeout.
            let is_late = deadline.is_over();
            let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(5);
            polled.extend(child.pidfd().map(|fd| PollFd::new(fd, PollFlags::IN)));
            polled.extend(self.stdin.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
            polled.extend(self.stdout.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            polled.extend(self.stderr.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            polled.extend(interrupt.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            match poll(&mut polled, deadline.time_left().as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let is_interrupted = interrupt.is_some() && polled.last().is_some_and(is_ready);
            if !child.has_exited() && is_ready(&polled[0]) {
                child.set_exited();
            }
            if is_interrupted {
                return Ok(PumpStop::Deadline);
            }
            // All pipes are non-blocking, so the ready one need not be identified.
            self.stdin.write()?;
            self.stdout.read(&mut self.buffer)?;
            self.stderr.read(&mut self.buffer)?;
            if self.has_excess_output() {
                return Ok(PumpStop::TooMuch);
            }
            if is_late {
                // The first read emptied the pipe, so this one finds EOF if the program has ended.
                self.stdout.read(&mut self.buffer)?;
                let is_finished = child.has_exited() && self.stdout.pipe.is_none();
                return Ok(if is_finished { PumpStop::Finished } else { PumpStop::Deadline });
            }
        }
        Ok(PumpStop::Finished)
    }

    fn has_excess_output(&self) -> bool {
        self.stdout.requires_kill() || self.stderr.requires_kill()
    }

    /// Reads the output that a program wrote just before its end.
    ///
    /// The buffer is as large as the pipe, so one read empties it; reading until EOF would never end if
    /// a background process writes without end.
    fn take_what_is_left(&mut self) -> io::Result<()> {
        self.stdout.read(&mut self.buffer)?;
        self.stderr.read(&mut self.buffer)
    }
}

/// A deadline; `None` never comes.
#[derive(Clone, Copy)]
struct PollDeadline(Option<Instant>);

impl PollDeadline {
    fn after(timeout: Duration) -> Self {
        // A time that overflows never comes.
        PollDeadline(Instant::now().checked_add(timeout))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// Returns the timeout for `poll`; `None` means no limit.
    fn time_left(self) -> Option<Timespec> {
        let left = self.0?.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }
}

#[cfg(test)]
mod tests;
