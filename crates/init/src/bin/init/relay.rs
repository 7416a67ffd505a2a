//! Forwarding of bytes: from background processes to the container's log after the host has
//! disconnected, and between a terminal and the host's pipes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::os::{POLLERR, POLLHUP, POLLIN, POLLOUT, PollFd, is_temporary};

/// Size of a relay's buffer. A pipe that is ready for writing accepts as many bytes without
/// blocking.
const BUFFER_BYTES: usize = 4096;
/// Time for which output waits for a log that accepts none, before it is dropped.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Byte that means the end of input to a terminal.
const END_OF_INPUT: u8 = 4;

/// A relay of bytes from one descriptor to another, until EOF.
pub struct Relay {
    from: File,
    to: File,
    buffer: Box<[u8; BUFFER_BYTES]>,
    /// Unwritten part of the buffer.
    pending: std::ops::Range<usize>,
    kind: RelayKind,
    /// Time by which the log has to accept pending bytes.
    pub deadline: Option<Instant>,
    /// Set if the log did not accept its last bytes.
    is_stuck: bool,
    pub is_done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RelayKind {
    /// Relays to the host, at the pace at which the host reads.
    Host,
    /// Relays to a terminal, and ends the terminal's input after the last byte.
    Terminal,
    /// Relays to the log. Output that the log does not accept is dropped, so that processes never
    /// block.
    Log,
}

impl Relay {
    pub fn new(from: OwnedFd, to: OwnedFd, kind: RelayKind) -> Self {
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

    /// Returns a relay to this process's standard output or error.
    pub fn to_log(from: OwnedFd, log: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Relay::new(from, log.try_clone_to_owned()?, RelayKind::Log))
    }

    /// Writes to the log in place of the host from now on.
    pub fn turn_to_log(&mut self, log: BorrowedFd<'_>) {
        if self.kind == RelayKind::Host
            && let Ok(log) = log.try_clone_to_owned()
        {
            self.to = log.into();
            self.kind = RelayKind::Log;
        }
    }

    /// Returns the descriptor to wait for.
    pub fn poll_entry(&self) -> PollFd {
        if self.pending.is_empty() {
            PollFd::new(self.from.as_fd(), POLLIN)
        } else {
            PollFd::new(self.to.as_fd(), POLLOUT)
        }
    }

    /// Returns whether bytes were read but not written, to anything but a terminal.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty() && self.kind != RelayKind::Terminal
    }

    /// Reads or writes without blocking; returns whether it did, but always false for a terminal.
    pub fn relay_bytes(&mut self, entry: PollFd) -> bool {
        if entry.is(POLLIN | POLLOUT | POLLERR | POLLHUP) {
            if self.pending.is_empty() {
                self.read();
            } else {
                self.write();
            }
            return self.kind != RelayKind::Terminal;
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.drop_pending();
            self.is_stuck = true;
        }
        false
    }

    fn read(&mut self) {
        match self.from.read(&mut self.buffer[..]) {
            Ok(0) => {
                if self.kind == RelayKind::Terminal {
                    let _ = self.to.write(&[END_OF_INPUT]);
                }
                self.is_done = true;
            }
            Ok(count) => {
                self.pending = 0..count;
                let patience = if self.is_stuck { Duration::ZERO } else { LOG_PATIENCE };
                self.deadline = (self.kind == RelayKind::Log).then(|| Instant::now() + patience);
            }
            Err(error) if is_temporary(&error) => {}
            // Also once no program has the terminal open any more.
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
            // A log without a reader, or a lost host, which the log replaces.
            Err(_) => self.drop_pending(),
        }
    }

    fn drop_pending(&mut self) {
        self.pending = 0..0;
        self.deadline = None;
    }
}
