//! Child processes with deadlines: [`Program::run`] feeds a program, reads what it writes, and
//! ends it with everything in its process group when it takes too long or writes too much.
//!
//! One thread and one `poll` loop do all of it, so a program that does not read, does not stop
//! writing, or closes its pipes early can block nothing. Programs are executed as they are named,
//! never searched for in `PATH`.

mod child;

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::debug;

use child::{Child, Input, Output};

/// How long a killed program may take to die. Longer means that it hangs in the kernel, as on a
/// dead network mount, and waiting on would hang us too.
const POST_KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A program to run, with everything it gets from us.
///
/// ```
/// use std::path::Path;
/// use oci_hooks::sys::process::{End, Program};
///
/// let mut program = Program::new(Path::new("/bin/cat"), Path::new("/"));
/// program.stdin = b"hello";
/// let finished = program.run()?;
/// assert_eq!(finished.end, End::Exited(0));
/// assert_eq!(finished.stdout, b"hello");
/// # Ok::<(), oci_hooks::sys::process::RunError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The file to execute; a relative path, one without a slash too, is relative to `cwd`.
    pub path: &'a Path,
    /// The argument vector, `argv[0]` included; when empty the program gets its path.
    pub argv: Vec<&'a OsStr>,
    /// The whole environment; of two entries with the same name the last one counts.
    pub env: Vec<(&'a OsStr, &'a OsStr)>,
    pub cwd: &'a Path,
    /// What the program can read from its standard input. Not reading it is no error.
    pub stdin: &'a [u8],
    /// Time until everything in the process group is killed; none means no limit, zero kills at
    /// once.
    pub timeout: Option<Duration>,
    /// A descriptor that becomes readable, and stays so, once everything in the process group is to be
    /// killed.
    pub interrupt: Option<BorrowedFd<'a>>,
    /// How much of standard output is kept.
    pub stdout: Limit,
    /// How much of standard error is kept.
    pub stderr: Limit,
}

/// How much of an output stream is kept, and what becomes of a program that writes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The program is killed once it wrote more than this many bytes.
    Kill(u64),
    /// The first bytes are kept, up to this many, and the rest is read and dropped.
    Truncate(u64),
}

/// What is known of a program that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub end: End,
    /// What it wrote to standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Whether it wrote more than that to standard output.
    pub stdout_truncated: bool,
    /// What it wrote to standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Whether it wrote more than that to standard error.
    pub stderr_truncated: bool,
    /// The time from before its start until it was waited for.
    pub duration: Duration,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// It was ended by this signal, which was not ours.
    Signaled(i32),
    /// It, or a descendant that held its standard output, was killed at the deadline, or because
    /// [`Program::interrupt`] was readable.
    TimedOut,
    /// It was killed because it wrote more than a [`Limit::Kill`] allows.
    OutputTooLarge,
}

/// Why a program could not be run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It could not be executed, or its working directory could not be entered.
    #[error("cannot execute {}", path.display())]
    Execute {
        /// The program, as it was named.
        path: PathBuf,
        source: io::Error,
    },
    /// It started, but could not be followed; it has been killed.
    #[error("cannot follow the process of {}", path.display())]
    Follow {
        /// The program, as it was named.
        path: PathBuf,
        source: io::Error,
    },
    /// It was killed, but hangs in the kernel.
    #[error(
        "{} is still there {} seconds after it was killed", path.display(),
        POST_KILL_TIMEOUT.as_secs()
    )]
    Unkillable {
        /// The program, as it was named.
        path: PathBuf,
    },
}

impl<'a> Program<'a> {
    /// Returns a program with no arguments, no environment, no input, no deadline, 16 MiB of
    /// standard output and 64 KiB of standard error.
    pub fn new(path: &'a Path, cwd: &'a Path) -> Self {
        Program {
            path,
            argv: Vec::new(),
            env: Vec::new(),
            cwd,
            stdin: &[],
            timeout: None,
            interrupt: None,
            stdout: Limit::Kill(16 << 20),
            stderr: Limit::Truncate(64 << 10),
        }
    }

    /// Runs the program until it exited and nobody holds its standard output any more.
    ///
    /// Go's `os/exec`, with which podman and runc run hooks, waits for a background process that
    /// inherited standard output, without a limit if there is no timeout; so does this. A
    /// background process that holds only standard error does not delay the end. Whoever is left
    /// in the process group lives on after a normal end, and is killed at the deadline, when a
    /// limit is exceeded, and on every error.
    ///
    /// `SIGPIPE` has its default action in the program; the signal mask and ignored signals are
    /// inherited from the calling thread, as they are from runc.
    pub fn run(&self) -> Result<Finished, RunError> {
        let start = Instant::now();
        let deadline = self.timeout.map_or(Deadline(None), Deadline::after);
        let mut child = Child::spawn(self)
            .map_err(|source| RunError::Execute { path: self.path.to_owned(), source })?;
        let follow = |source| RunError::Follow { path: self.path.to_owned(), source };
        let mut streams = child.open_streams(self).map_err(follow)?;

        let stop = streams.pump(&mut child, deadline, self.interrupt).map_err(follow)?;
        if stop != Stop::Finished {
            child.kill();
            if !child.wait_for_exit(Deadline::after(POST_KILL_TIMEOUT)).map_err(follow)? {
                child.abandon();
                return Err(RunError::Unkillable { path: self.path.to_owned() });
            }
        }
        streams.take_what_is_left().map_err(follow)?;
        let status = child.reap().map_err(follow)?;
        debug!(program = %self.path.display(), %status, duration = ?start.elapsed(), "ended");
        Ok(Finished {
            end: match stop {
                Stop::Deadline => End::TimedOut,
                Stop::Finished if !streams.wrote_too_much() => End::from(status),
                Stop::Finished | Stop::TooMuch => End::OutputTooLarge,
            },
            stdout: streams.stdout.bytes,
            stdout_truncated: streams.stdout.exceeded,
            stderr: streams.stderr.bytes,
            stderr_truncated: streams.stderr.exceeded,
            duration: start.elapsed(),
        })
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => End::Exited(code),
            None => End::Signaled(status.signal().expect("a process without code had a signal")),
        }
    }
}

/// Why the pumping of streams stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Finished,
    Deadline,
    TooMuch,
}

/// Our ends of a program's standard streams.
struct Streams<'a> {
    stdin: Input<'a>,
    stdout: Output,
    stderr: Output,
    buffer: Vec<u8>,
}

impl Streams<'_> {
    /// Moves bytes until the program is done, the deadline is over, the interrupt is readable, or it
    /// wrote too much.
    fn pump(
        &mut self,
        child: &mut Child,
        deadline: Deadline,
        interrupt: Option<BorrowedFd<'_>>,
    ) -> io::Result<Stop> {
        while !(child.exited() && self.stdout.pipe.is_none()) {
            if deadline.is_over() {
                return Ok(Stop::Deadline);
            }
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
            if !child.exited() && is_ready(&polled[0]) {
                child.set_exited();
            }
            if is_interrupted {
                return Ok(Stop::Deadline);
            }
            // None of these blocks, so which one was ready need not be told apart.
            self.stdin.write()?;
            self.stdout.read(&mut self.buffer)?;
            self.stderr.read(&mut self.buffer)?;
            if self.wrote_too_much() {
                return Ok(Stop::TooMuch);
            }
        }
        Ok(Stop::Finished)
    }

    fn wrote_too_much(&self) -> bool {
        self.stdout.kills() || self.stderr.kills()
    }

    /// Reads what a program wrote just before its end.
    ///
    /// One read of a buffer as large as the pipe takes all of it; reading until nothing is left
    /// would never end if a background process writes without end.
    fn take_what_is_left(&mut self) -> io::Result<()> {
        self.stdout.read(&mut self.buffer)?;
        self.stderr.read(&mut self.buffer)
    }
}

/// A point in time that may never come.
#[derive(Clone, Copy)]
struct Deadline(Option<Instant>);

impl Deadline {
    fn after(timeout: Duration) -> Self {
        // A sum that cannot be represented never comes.
        Deadline(Instant::now().checked_add(timeout))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// Returns how long `poll` may wait; none is without limit.
    fn time_left(self) -> Option<Timespec> {
        let left = self.0?.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }
}

#[cfg(test)]
mod tests;
