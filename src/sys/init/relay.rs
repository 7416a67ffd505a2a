//! Bytes that are passed on: what background processes write after the host has gone, to the log of
//! the container, and between a terminal and the host's pipes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::os::{EIO, POLLERR, POLLHUP, POLLIN, POLLOUT, PollFd};

/// A pipe with room takes as much without blocking.
const BUFFER_BYTES: usize = 4096;
/// How long a log that nobody reads is waited for before what it should have is dropped.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// What a terminal takes for the end of input.
const END_OF_INPUT: u8 = 4;

/// What goes from one descriptor to another, until the first has no more.
pub struct Relay {
    from: File,
    to: File,
    buffer: Box<[u8; BUFFER_BYTES]>,
    /// What is in the buffer and was not written.
    pending: std::ops::Range<usize>,
    kind: Kind,
    /// When the log has to take what is pending.
    deadline: Option<Instant>,
    /// Whether the log did not take what it should have had last.
    is_stuck: bool,
    is_done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the host, which says how fast.
    Host,
    /// To a terminal, which has an end of input of its own.
    Terminal,
    /// To the log, which must not keep anybody waiting.
    Log,
}

impl Relay {
    pub(crate) fn new(from: OwnedFd, to: OwnedFd, kind: Kind) -> Self {
        Relay {
            from: from.into(),
            to: to.into(),
            buffer: Box::new([0; BUFFER_BYTES]),
            pending: 0..0,
            kind,
            deadline: None,
            is_stuck: false,
            is_done: false,
        }
    }

    /// Returns a relay to what this process has as standard output or errors.
    pub fn to_log(from: OwnedFd, log: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Relay::new(from, log.try_clone_to_owned()?, Kind::Log))
    }

    /// Writes to the log from now on.
    pub fn turn_to_log(&mut self, log: BorrowedFd<'_>) {
        if let Ok(log) = log.try_clone_to_owned() {
            self.to = log.into();
            self.kind = Kind::Log;
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns what to wait for.
    pub fn poll_entry(&self) -> PollFd {
        if self.is_done {
            PollFd::none()
        } else if self.pending.is_empty() {
            PollFd::new(self.from.as_fd(), POLLIN)
        } else {
            PollFd::new(self.to.as_fd(), POLLOUT)
        }
    }

    /// Returns whether something was read and not written, to anything but a terminal.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty() && self.kind != Kind::Terminal
    }

    /// Does what is possible without waiting; returns whether that was something.
    pub fn go_on(&mut self, entry: PollFd) -> bool {
        if entry.is(POLLIN | POLLOUT | POLLERR | POLLHUP) {
            if self.pending.is_empty() {
                self.read();
            } else {
                self.write();
            }
            return self.kind != Kind::Terminal;
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.drop_pending();
            self.is_stuck = true;
        }
        false
    }

    fn read(&mut self) {
        match self.from.read(&mut self.buffer[..]) {
            Ok(0) => self.end(),
            Ok(count) => {
                self.pending = 0..count;
                let patience = if self.is_stuck { Duration::ZERO } else { LOG_PATIENCE };
                self.deadline = (self.kind == Kind::Log).then(|| Instant::now() + patience);
            }
            Err(error) if is_temporary(&error) => {}
            // A terminal that no program has open any more.
            Err(error) if error.raw_os_error() == Some(EIO) => self.is_done = true,
            Err(_) => self.is_done = true,
        }
    }

    fn write(&mut self) {
        match self.to.write(&self.buffer[self.pending.clone()]) {
            Ok(count) => {
                self.pending.start += count;
                self.is_stuck = false;
                if self.pending.is_empty() {
                    self.drop_pending();
                }
            }
            Err(error) if is_temporary(&error) => {}
            // A log without a reader, or a host that is gone: there is one more reader after it.
            Err(_) => self.drop_pending(),
        }
    }

    fn drop_pending(&mut self) {
        self.pending = 0..0;
        self.deadline = None;
    }

    fn end(&mut self) {
        if self.kind == Kind::Terminal {
            let _ = self.to.write(&[END_OF_INPUT]);
        }
        self.is_done = true;
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
