//! The stream of an exec: frames of the host on standard input, answers on standard output.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use crate::os::{self, POLLIN, POLLOUT, PollFd};
use oci_hooks_init::frames::journal::{HEARTBEAT_SECONDS, StepEvent};
use oci_hooks_init::frames::{FrameBuffer, FrameError, MAX_REQUEST_BYTES, StepAnswer, VERSIONS};
use rustix::io::ioctl_fionbio;

const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECONDS);
/// Longest silence of the host, which sends a frame every 5 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Kind of the frame that only shows that the host is connected.
const ALIVE: u8 = 0x8a;
const READ_AT_ONCE: usize = 64 << 10;
/// Limit of input that is buffered while the host does not read.
const MAX_AHEAD_BYTES: usize = 1 << 20;

/// The host at the other end of an exec. Frames from it are complete, but their content is
/// untrusted.
pub struct ExecHost {
    input: File,
    output: File,
    frames: FrameBuffer,
    buffer: Vec<u8>,
    heard: Instant,
    told: Instant,
}

/// Reasons for losing the host.
#[derive(Debug)]
pub enum StreamError {
    Closed,
    Silent,
    Broken(io::Error),
    Frame(FrameError),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Closed => f.write_str("the stream ended"),
            StreamError::Silent => write!(f, "no data from the host for {} s", PATIENCE.as_secs()),
            StreamError::Broken(error) => write!(f, "the stream broke: {error}"),
            StreamError::Frame(error) => write!(f, "{error}"),
        }
    }
}

impl From<FrameError> for StreamError {
    fn from(error: FrameError) -> Self {
        StreamError::Frame(error)
    }
}

impl ExecHost {
    /// Takes over standard input and output, and sends the hello.
    pub fn open() -> Result<Self, StreamError> {
        let file = |fd: BorrowedFd<'_>| {
            ioctl_fionbio(fd, true)?;
            Ok(File::from(fd.try_clone_to_owned()?))
        };
        let input = file(io::stdin().as_fd()).map_err(StreamError::Broken)?;
        let output = file(io::stdout().as_fd()).map_err(StreamError::Broken)?;
        let now = Instant::now();
        let mut host = ExecHost {
            input,
            output,
            frames: FrameBuffer::new(MAX_REQUEST_BYTES),
            buffer: vec![0; READ_AT_ONCE],
            heard: now,
            told: now,
        };
        host.send(&StepAnswer::Hello(VERSIONS).encode())?;
        Ok(host)
    }

    /// Waits for the next frame, and sends heartbeats meanwhile; returns its kind and payload.
    pub fn receive(&mut self) -> Result<(u8, Vec<u8>), StreamError> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            self.wait(None)?;
        }
    }

    /// Returns the next frame if it is complete.
    pub fn try_receive(&mut self) -> Result<Option<(u8, Vec<u8>)>, StreamError> {
        loop {
            match self.frames.take()? {
                Some((ALIVE, _)) => {}
                Some(frame) => return Ok(Some(frame)),
                None if self.read()? => {}
                None => return Ok(None),
            }
        }
    }

    /// Sends whole frames, and waits until they are written.
    pub fn send(&mut self, frames: &[u8]) -> Result<(), StreamError> {
        let mut left = frames;
        while !left.is_empty() {
            match self.output.write(left) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_to_write()?,
                Err(error) => return Err(StreamError::Broken(error)),
            }
        }
        self.told = Instant::now();
        Ok(())
    }

    /// Sends a heartbeat if nothing was sent for some time. Long operations call this repeatedly.
    pub fn tick(&mut self) -> Result<(), StreamError> {
        if self.told.elapsed() >= HEARTBEAT {
            self.send(&StepEvent::Heartbeat.encode())?;
        }
        Ok(())
    }

    /// Waits for input from the host, or from another descriptor; returns whether the latter is
    /// ready.
    pub fn wait(&mut self, other: Option<BorrowedFd<'_>>) -> Result<bool, StreamError> {
        loop {
            self.tick()?;
            let timeout =
                HEARTBEAT.saturating_sub(self.told.elapsed()).min(self.remaining_silence()?);
            let mut entries = [PollFd::new(self.input.as_fd(), POLLIN), PollFd::input(other)];
            os::poll(&mut entries, Some(timeout));
            let [host, other] = entries.map(|entry| entry.is_readable());
            if host || other {
                return Ok(other);
            }
        }
    }

    /// Waits until the host accepts data or sends some. Received data is buffered, because the host
    /// may not read before it has sent everything.
    fn wait_to_write(&mut self) -> Result<(), StreamError> {
        let timeout = self.remaining_silence()?;
        let reads = self.frames.length() < MAX_AHEAD_BYTES;
        let mut entries = [
            PollFd::new(self.output.as_fd(), POLLOUT),
            PollFd::input(reads.then(|| self.input.as_fd())),
        ];
        os::poll(&mut entries, Some(timeout));
        if entries[1].is_readable() {
            self.read()?;
        }
        Ok(())
    }

    /// Returns how much longer the host may be silent.
    fn remaining_silence(&mut self) -> Result<Duration, StreamError> {
        if self.heard.elapsed() >= PATIENCE && !self.read()? {
            return Err(StreamError::Silent);
        }
        // The input may have been waiting all that time.
        Ok(PATIENCE.saturating_sub(self.heard.elapsed()))
    }

    /// Reads available input; returns whether there was any.
    fn read(&mut self) -> Result<bool, StreamError> {
        match self.input.read(&mut self.buffer) {
            Ok(0) => Err(StreamError::Closed),
            Ok(count) => {
                self.frames.push(&self.buffer[..count]);
                self.heard = Instant::now();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(StreamError::Broken(error)),
        }
    }
}
