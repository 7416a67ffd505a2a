//! The connection of an exec to the supervisor of a step.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::agent_dir::AgentDirectory;
use crate::os;
use crate::remote::{ExecHost, StreamError};
use crate::start::failure;
use oci_hooks_init::frames::journal::{MAX_EVENT_BYTES, StepEvent};
use oci_hooks_init::frames::{
    DEAD_WITHIN_SECONDS, FailureKind, FrameBuffer, StepAnswer, StepFailure, VERSIONS,
};

const READ_AT_ONCE: usize = 64 << 10;
/// Timeout for an event of a step, which begins once an earlier step that lost its host is dead.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(DEAD_WITHIN_SECONDS + 5);
/// Timeout for the first process to listen on its socket in a container that was just started.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A step that a host is attached to.
pub struct AttachedStep {
    socket: UnixStream,
    frames: FrameBuffer,
    buffer: Vec<u8>,
    /// Set once the end of the step was sent to the host.
    is_ended: bool,
}

impl AttachedStep {
    /// Begins a step, or attaches to it, by the frame of an attach request. If neither is possible, the
    /// host is sent the end at once, and nothing is attached.
    pub fn open(
        agent_dir: &AgentDirectory,
        request: &[u8],
        host: &mut ExecHost,
    ) -> Result<Option<Self>, StreamError> {
        let begun = match begin(agent_dir, request) {
            // Another process may just have begun the step.
            Ok(None) => begin(agent_dir, request),
            begun => begun,
        };
        let failure = match begun {
            Ok(Some((socket, frames))) => {
                let buffer = vec![0; READ_AT_ONCE];
                return Ok(Some(AttachedStep { socket, frames, buffer, is_ended: false }));
            }
            Ok(None) => StepFailure::new(FailureKind::Keeper, 0, "step"),
            Err(error) => failure(FailureKind::Process, &error, "step"),
        };
        host.send(&StepEvent::failed(0, failure).encode())?;
        Ok(None)
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Forwards available events to the host; returns whether there may be more.
    pub fn pass(&mut self, host: &mut ExecHost) -> Result<bool, StreamError> {
        match self.socket.read(&mut self.buffer) {
            Err(error) if os::is_temporary(&error) => return Ok(true),
            Ok(count) if count > 0 => {
                self.frames.push(&self.buffer[..count]);
                self.pass_frames(host)?;
                return Ok(true);
            }
            _ => {}
        }
        if !self.is_ended {
            let failure = StepFailure::new(FailureKind::Keeper, 0, "step");
            host.send(&StepEvent::failed(0, failure).encode())?;
        }
        Ok(false)
    }

    /// Forwards only whole frames, because other frames may be sent in between.
    fn pass_frames(&mut self, host: &mut ExecHost) -> Result<(), StreamError> {
        let mut out = Vec::with_capacity(self.frames.length());
        while let Some((kind, payload)) = self.frames.take()? {
            self.is_ended |= matches!(kind, 0x03..=0x05);
            out.push(kind);
            out.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(payload);
        }
        host.send(&out)
    }

    /// Forwards the frame of a request about the step. If that fails, the supervisor has ended, which
    /// is detected when reading.
    pub fn send(&self, request: &[u8]) {
        os::send_all(self.socket.as_fd(), request);
    }
}

/// Requests a step from the first process; returns the connection and the first byte of the events,
/// or `None` if no supervisor keeps the step.
fn begin(
    agent_dir: &AgentDirectory,
    request: &[u8],
) -> io::Result<Option<(UnixStream, FrameBuffer)>> {
    let mut socket = connect_first(agent_dir)?;
    socket.set_read_timeout(Some(BEGIN_TIMEOUT))?;
    socket.set_write_timeout(Some(BEGIN_TIMEOUT))?;
    // Needs no check: it is sent by the same program.
    let mut hello = StepAnswer::Hello(VERSIONS).encode();
    socket.read_exact(&mut hello)?;
    // If the first process could not start another one, it has sent the reason instead.
    let _ = socket.write_all(request);
    let mut first = [0];
    match socket.read_exact(&mut first) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut frames = FrameBuffer::new(MAX_EVENT_BYTES);
    frames.push(&first);
    socket.set_nonblocking(true)?;
    Ok(Some((socket, frames)))
}

/// Connects to the first process, which may just have been started.
fn connect_first(agent_dir: &AgentDirectory) -> io::Result<UnixStream> {
    let until = Instant::now() + LISTEN_TIMEOUT;
    loop {
        let error = match UnixStream::connect(agent_dir.socket()) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let is_early =
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !is_early || Instant::now() >= until {
            return Err(error);
        }
        thread::sleep(POLL_INTERVAL);
    }
}
