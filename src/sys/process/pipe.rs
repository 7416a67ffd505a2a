//! Our non-blocking ends of a child's standard streams.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::Limit;

/// The writing end of standard input, with what is still to be written.
pub(super) struct Input<'a> {
    pub(super) pipe: Option<OwnedFd>,
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(super) fn new(pipe: OwnedFd, bytes: &'a [u8]) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        // Without bytes the pipe closes here, which is the end of input.
        Ok(Input { pipe: (!bytes.is_empty()).then_some(pipe), rest: bytes })
    }

    /// Writes as much as the pipe takes, and closes it after the last byte or when nobody reads.
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

/// The reading end of an output stream, with what was read of it.
pub(super) struct Output {
    pub(super) pipe: Option<OwnedFd>,
    pub(super) bytes: Vec<u8>,
    /// Whether there was more than the limit.
    pub(super) exceeded: bool,
    limit: Limit,
}

impl Output {
    pub(super) fn new(pipe: OwnedFd, limit: Limit) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Output { pipe: Some(pipe), bytes: Vec::new(), exceeded: false, limit })
    }

    /// Reads once, keeps what the limit allows, and closes the pipe at its end.
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
        let (Limit::Kill(limit) | Limit::Truncate(limit)) = self.limit;
        let room = usize::try_from(limit).unwrap_or(usize::MAX) - self.bytes.len();
        self.exceeded |= read.len() > room;
        self.bytes.extend_from_slice(&read[..read.len().min(room)]);
    }

    /// Returns whether the program has to be killed for what it wrote.
    pub(super) fn kills(&self) -> bool {
        self.exceeded && matches!(self.limit, Limit::Kill(_))
    }
}
