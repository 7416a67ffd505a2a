//! The stream of an exec: frames of the host on standard input, answers on standard output.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use crate::frames::journal::{HEARTBEAT_SECONDS, StepEvent};
use crate::frames::{Answer, FrameError, Frames, MAX_REQUEST_BYTES, VERSIONS};
use crate::os::{self, POLLERR, POLLHUP, POLLIN, POLLOUT, PollFd};

const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECONDS);
/// The kind of frame that only says that the host is there.
const ALIVE: u8 = 0x8a;
const READ_AT_ONCE: usize = 64 << 10;
/// How much is taken from a host that does not take what it gets.
const MAX_AHEAD_BYTES: usize = 1 << 20;

/// The host at the other end of an exec. What it sends is believed as little as anything else; only its
/// frames are whole.
pub struct Host {
    input: File,
    output: File,
    frames: Frames,
    buffer: Vec<u8>,
    /// How long it may say nothing.
    patience: Duration,
    heard: Instant,
    told: Instant,
}

/// Why there is no host any more.
#[derive(Debug)]
pub enum Gone {
    Closed,
    Silent,
    Broken(io::Error),
    Frame(FrameError),
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gone::Closed => f.write_str("the stream ended"),
            Gone::Silent => f.write_str("nothing came from the host"),
            Gone::Broken(error) => write!(f, "the stream broke: {error}"),
            Gone::Frame(error) => write!(f, "{error}"),
        }
    }
}

impl From<FrameError> for Gone {
    fn from(error: FrameError) -> Self {
        Gone::Frame(error)
    }
}

impl Host {
    /// Takes over standard input and output, and says hello.
    pub(crate) fn open(patience: Duration) -> Result<Self, Gone> {
        let file = |fd: BorrowedFd<'_>| {
            os::set_nonblocking(fd)?;
            Ok(File::from(fd.try_clone_to_owned()?))
        };
        let input = file(io::stdin().as_fd()).map_err(Gone::Broken)?;
        let output = file(io::stdout().as_fd()).map_err(Gone::Broken)?;
        let now = Instant::now();
        let mut host = Host {
            input,
            output,
            frames: Frames::new(MAX_REQUEST_BYTES),
            buffer: vec![0; READ_AT_ONCE],
            patience,
            heard: now,
            told: now,
        };
        host.send(&Answer::Hello(VERSIONS).encode())?;
        Ok(host)
    }

    /// Waits for the next frame; returns its kind and payload. The host is told meanwhile that we are there.
    pub(crate) fn receive(&mut self) -> Result<(u8, Vec<u8>), Gone> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            self.wait(None)?;
        }
    }

    /// Returns the next frame if it is there as a whole.
    pub(crate) fn try_receive(&mut self) -> Result<Option<(u8, Vec<u8>)>, Gone> {
        loop {
            match self.frames.take()? {
                Some((ALIVE, _)) => {}
                Some(frame) => return Ok(Some(frame)),
                None if self.read()? => {}
                None => return Ok(None),
            }
        }
    }

    /// Sends whole frames; waits until they have gone.
    pub(crate) fn send(&mut self, frames: &[u8]) -> Result<(), Gone> {
        let mut left = frames;
        while !left.is_empty() {
            match self.output.write(left) {
                Ok(0) => return Err(Gone::Closed),
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_to_write()?,
                Err(error) => return Err(Gone::Broken(error)),
            }
        }
        self.told = Instant::now();
        Ok(())
    }

    /// Tells the host that we are there, if it was not told anything for some time. Whoever works for long
    /// without a word calls this between two pieces of it.
    pub(crate) fn tick(&mut self) -> Result<(), Gone> {
        if self.told.elapsed() >= HEARTBEAT {
            self.send(&StepEvent::Heartbeat.encode())?;
        }
        Ok(())
    }

    /// Waits until something comes from the host, or from another descriptor; returns whether it was that.
    pub(crate) fn wait(&mut self, other: Option<BorrowedFd<'_>>) -> Result<bool, Gone> {
        loop {
            self.tick()?;
            let timeout = HEARTBEAT.saturating_sub(self.told.elapsed()).min(self.left()?);
            let mut entries = [
                PollFd::new(self.input.as_fd(), POLLIN),
                other.map_or(PollFd::none(), |other| PollFd::new(other, POLLIN)),
            ];
            os::poll(&mut entries, Some(timeout));
            let [host, other] = entries.map(|entry| entry.is(POLLIN | POLLHUP | POLLERR));
            if host || other {
                return Ok(other);
            }
        }
    }

    /// Waits until the host takes something. One that sends much meanwhile is not kept waiting for ever: it
    /// may not take anything before it has sent all.
    fn wait_to_write(&mut self) -> Result<(), Gone> {
        let timeout = self.left()?;
        let reads = self.frames.length() < MAX_AHEAD_BYTES;
        let mut entries = [
            PollFd::new(self.output.as_fd(), POLLOUT),
            if reads { PollFd::new(self.input.as_fd(), POLLIN) } else { PollFd::none() },
        ];
        os::poll(&mut entries, Some(timeout));
        if entries[1].is(POLLIN | POLLHUP | POLLERR) {
            self.read()?;
        }
        Ok(())
    }

    /// Returns how long the host may go on to say nothing.
    fn left(&mut self) -> Result<Duration, Gone> {
        if self.heard.elapsed() >= self.patience && !self.read()? {
            return Err(Gone::Silent);
        }
        // What was heard may have been waiting for all of that time.
        Ok(self.patience.saturating_sub(self.heard.elapsed()))
    }

    /// Reads what there is; returns whether there was something.
    fn read(&mut self) -> Result<bool, Gone> {
        match self.input.read(&mut self.buffer) {
            Ok(0) => Err(Gone::Closed),
            Ok(count) => {
                self.frames.push(&self.buffer[..count]);
                self.heard = Instant::now();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(Gone::Broken(error)),
        }
    }
}
