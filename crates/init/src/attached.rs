//! The connection of an exec to the keeper of a step.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::agent_dir::{AgentDirectory, StepDirectory};
use crate::frames::journal::{AttachRequest, MAX_EVENT_BYTES, StepEvent};
use crate::frames::{FailureKind, FrameBuffer, StepFailure, StepRequest};
use crate::os;
use crate::remote::{ExecHost, StreamError};

const READ_AT_ONCE: usize = 64 << 10;
/// Maximum number of attempts to connect to a step's keeper or begin the step: an attempt fails if
/// the first process closes the connection, as when another process begins the step at the same
/// time.
const ATTEMPTS: usize = 5;
/// Timeout for the first process to begin a step, which may have to wait for a cancelled step to
/// die.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for the first process to listen on its socket in a container that was just started.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A step that a host is attached to.
pub struct AttachedStep {
    socket: UnixStream,
    step_dir: StepDirectory,
    frames: FrameBuffer,
    buffer: Vec<u8>,
    /// Set once the end of the step was sent to the host.
    is_ended: bool,
}

impl AttachedStep {
    /// Connects to the keeper of a step, or begins the step. If neither is possible, the host is
    /// sent the end at once, and nothing is attached.
    pub fn open(
        agent_dir: &AgentDirectory,
        attach: AttachRequest,
        host: &mut ExecHost,
    ) -> Result<Option<Self>, StreamError> {
        let step_dir = agent_dir.step(&attach.id);
        match connect(agent_dir, &step_dir, attach) {
            Ok((socket, frames)) => {
                let buffer = vec![0; READ_AT_ONCE];
                let mut attached =
                    AttachedStep { socket, step_dir, frames, buffer, is_ended: false };
                attached.pass_frames(host)?;
                Ok(Some(attached))
            }
            Err(failure) => {
                host.send(&known_end(&step_dir, failure).encode())?;
                Ok(None)
            }
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
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
            let end = known_end(&self.step_dir, StepFailure::new(FailureKind::Keeper, 0, "step"));
            host.send(&end.encode())?;
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

    /// Forwards a request about the step. If that fails, the keeper has ended, which is detected
    /// when reading.
    pub fn send(&self, request: &StepRequest) -> Result<(), StreamError> {
        os::send_all(self.socket.as_fd(), &request.encode()?);
        Ok(())
    }
}

/// Returns the end that a step's keeper recorded before it exited, or the failure if it recorded none.
fn known_end(step_dir: &StepDirectory, failure: StepFailure) -> StepEvent {
    step_dir.read_end().unwrap_or_else(|| StepEvent::failed(0, failure))
}

/// Connects to the keeper of a step, which is begun unless its id was used before; returns the
/// connection, and the bytes received so far.
fn connect(
    agent_dir: &AgentDirectory,
    step_dir: &StepDirectory,
    attach: AttachRequest,
) -> Result<(UnixStream, FrameBuffer), StepFailure> {
    let has_step = attach.step.is_some();
    let again = AttachRequest { id: attach.id.clone(), from: attach.from, step: None };
    let encode = |attach: AttachRequest| {
        let request = StepRequest::Attach(Box::new(attach));
        request
            .encode()
            .map_err(|error| StepFailure::new(FailureKind::Request, 0, error.to_string()))
    };
    let (begin, again) = (encode(attach)?, encode(again)?);
    for _ in 0..ATTEMPTS {
        // In this order: a step's directory has a socket from the beginning.
        let is_there = step_dir.exists();
        let connected = UnixStream::connect(step_dir.socket());
        if let Ok(mut socket) = connected
            && socket.write_all(&again).and_then(|()| socket.set_nonblocking(true)).is_ok()
        {
            return Ok((socket, FrameBuffer::new(MAX_EVENT_BYTES)));
        }
        if is_there || !has_step {
            return Err(StepFailure::new(FailureKind::Keeper, 0, "step"));
        }
        let begun = self::begin(agent_dir, &begin);
        let error = |error: io::Error| {
            StepFailure::new(FailureKind::Process, error.raw_os_error().unwrap_or_default(), "step")
        };
        if let Some(begun) = begun.map_err(error)? {
            return Ok(begun);
        }
    }
    Err(StepFailure::new(FailureKind::Busy, 0, "step"))
}

/// Requests a step from the first process; returns `None` if the first process closes the
/// connection, as when the step's id has been used by now.
fn begin(
    agent_dir: &AgentDirectory,
    request: &[u8],
) -> io::Result<Option<(UnixStream, FrameBuffer)>> {
    let mut socket = connect_first(agent_dir)?;
    socket.set_read_timeout(Some(BEGIN_TIMEOUT))?;
    socket.set_write_timeout(Some(BEGIN_TIMEOUT))?;
    let mut frames = FrameBuffer::new(MAX_EVENT_BYTES);
    let mut buffer = [0; 4096];
    let mut is_greeted = false;
    loop {
        let count = match socket.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return Ok(None);
        }
        frames.push(&buffer[..count]);
        if is_greeted {
            break;
        }
        // The hello needs no check: it is sent by the same program.
        if frames.take().map_err(io::Error::other)?.is_some() {
            is_greeted = true;
            socket.write_all(request)?;
        }
    }
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
