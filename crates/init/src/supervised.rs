//! The connection of a keeper (`keeper`) to its step's supervisor, which treats it like any host.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::agent_dir::AgentDirectory;
use crate::frames::{
    ContainerStep, FailureKind, FrameBuffer, MAX_ANSWER_BYTES, STREAMS, StepAnswer, StepFailure,
    StepRequest,
};
use crate::os::{self, POLLIN, POLLOUT, PollFd};

/// Timeout of the first process's hello and of the program's start, on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A step under a supervisor.
pub struct SupervisedStep {
    socket: OwnedFd,
    frames: FrameBuffer,
    /// Bytes to send, and the number of them already sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Descriptors for the standard streams of the step, until they are sent with the first byte.
    streams: Option<[OwnedFd; STREAMS]>,
    is_greeted: bool,
    is_started: bool,
    answer_by: Instant,
}

/// State of a supervised step.
pub enum SupervisionState {
    Running { is_started: bool },
    Ended(StepAnswer),
}

impl SupervisedStep {
    /// Requests a step from the first process; returns the pipes of its output.
    pub fn start(
        agent_dir: &AgentDirectory,
        step: ContainerStep,
    ) -> Result<(Self, [File; 2]), StepFailure> {
        let error = |error: io::Error| {
            StepFailure::new(FailureKind::Process, error.raw_os_error().unwrap_or_default(), "step")
        };
        let request = StepRequest::Step(Box::new(step)).encode();
        let outgoing = request
            .map_err(|error| StepFailure::new(FailureKind::Request, 0, error.to_string()))?;
        let (streams, pipes) = pipes().map_err(error)?;
        let socket = UnixStream::connect(agent_dir.socket()).map_err(error)?;
        socket.set_nonblocking(true).map_err(error)?;
        let supervised = SupervisedStep {
            socket: socket.into(),
            frames: FrameBuffer::new(MAX_ANSWER_BYTES),
            outgoing,
            sent: 0,
            streams: Some(streams),
            is_greeted: false,
            is_started: false,
            answer_by: Instant::now() + ANSWER_WITHIN,
        };
        Ok((supervised, pipes))
    }

    pub(crate) fn poll_entry(&self) -> PollFd {
        let sends = self.is_greeted && !self.outgoing.is_empty();
        PollFd::new(self.socket.as_fd(), if sends { POLLIN | POLLOUT } else { POLLIN })
    }

    /// Returns the deadline of the pending answer; `None` once the program has started.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.is_started).then_some(self.answer_by)
    }

    /// Sends a request about the step that was started.
    pub fn ask(&mut self, request: &StepRequest) {
        self.outgoing.extend(request.encode().unwrap_or_default());
        self.send();
    }

    /// Sends and receives as much as possible without blocking.
    pub fn exchange_data(&mut self) -> SupervisionState {
        self.send();
        if let Some(end) = self.receive() {
            return SupervisionState::Ended(end);
        }
        if self.deadline().is_some_and(|at| Instant::now() >= at) {
            let late =
                StepFailure::new(FailureKind::Request, 0, "no answer from the first process");
            return SupervisionState::Ended(StepAnswer::Failed(late));
        }
        SupervisionState::Running { is_started: self.is_started }
    }

    fn send(&mut self) {
        while self.is_greeted && self.sent < self.outgoing.len() {
            let left = &self.outgoing[self.sent..];
            let streams = self.streams.iter().flatten().map(|fd| fd.as_fd());
            let streams: Vec<BorrowedFd<'_>> = streams.collect();
            // A lost connection is detected when it is read.
            let Ok(count) = os::send_with(self.socket.as_fd(), left, &streams) else { return };
            self.sent += count;
            self.streams = None;
        }
        if self.sent == self.outgoing.len() && self.is_greeted {
            // Contains secrets, and is as large as the environment.
            self.outgoing = Vec::new();
            self.sent = 0;
        }
    }

    /// Returns the last answer, once the step has ended.
    fn receive(&mut self) -> Option<StepAnswer> {
        let watcher = || StepAnswer::Failed(StepFailure::new(FailureKind::Supervisor, 0, "step"));
        let mut bytes = [0; 4096];
        loop {
            match os::receive(self.socket.as_fd(), &mut bytes, &mut Vec::new()) {
                Ok(count) if count > 0 => self.frames.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // The supervisor or its parent is gone.
                _ => return Some(watcher()),
            }
            loop {
                match self.frames.decode_next(StepAnswer::decode) {
                    Ok(None) => break,
                    Ok(Some(StepAnswer::Hello(_))) => {
                        self.is_greeted = true;
                        self.send();
                    }
                    Ok(Some(StepAnswer::Started)) => self.is_started = true,
                    Ok(Some(end)) => return Some(end),
                    Err(_) => return Some(watcher()),
                }
            }
        }
    }
}

/// Returns the streams of a step, whose input is empty, and the keeper's ends of its output and
/// errors.
fn pipes() -> io::Result<([OwnedFd; STREAMS], [File; 2])> {
    let (input, _) = io::pipe()?;
    let (output, output_end) = io::pipe()?;
    let (errors, errors_end) = io::pipe()?;
    let pipes = [output, errors].map(|pipe| File::from(OwnedFd::from(pipe)));
    for pipe in &pipes {
        os::set_nonblocking(pipe.as_fd())?;
    }
    let theirs = [pipes[0].try_clone()?.into(), pipes[1].try_clone()?.into()];
    let [output, errors] = theirs;
    Ok(([input.into(), output_end.into(), errors_end.into(), output, errors], pipes))
}
