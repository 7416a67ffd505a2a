//! The keeper's connection to the supervisor of its step: it is a host as any other.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::frames::{
    Answer, Failure, FailureKind, Frames, MAX_ANSWER_BYTES, Request, STREAMS, Step,
};
use crate::os::{self, POLLIN, POLLOUT, PollFd};
use crate::place::Place;

/// How long the first process may take to say hello, and to start the program, on a machine that has much
/// else to do.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A step under a supervisor.
pub struct Supervised {
    socket: OwnedFd,
    frames: Frames,
    /// What is to be sent, and how much of it was.
    outgoing: Vec<u8>,
    sent: usize,
    /// Goes with the first byte.
    streams: Option<[OwnedFd; STREAMS]>,
    is_greeted: bool,
    is_started: bool,
    answer_by: Instant,
}

/// How a step is.
pub enum Supervision {
    Running { is_started: bool },
    Ended(Answer),
}

impl Supervised {
    /// Asks the first process for a step; returns the pipes that it writes to.
    pub fn start(place: &Place, step: Step) -> Result<(Self, [File; 2]), Failure> {
        let error = |error: io::Error| {
            failure(FailureKind::Process, error.raw_os_error().unwrap_or_default(), "step")
        };
        let request = Request::Step(Box::new(step)).encode();
        let outgoing =
            request.map_err(|error| failure(FailureKind::Request, 0, &error.to_string()))?;
        let (streams, pipes) = pipes().map_err(error)?;
        let socket = UnixStream::connect(place.socket()).map_err(error)?;
        socket.set_nonblocking(true).map_err(error)?;
        let supervised = Supervised {
            socket: socket.into(),
            frames: Frames::new(MAX_ANSWER_BYTES),
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

    /// Returns when an answer is late.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.is_started).then_some(self.answer_by)
    }

    /// Asks for something after the step.
    pub fn ask(&mut self, request: &Request) {
        self.outgoing.extend(request.encode().unwrap_or_default());
        self.send();
    }

    /// Sends and receives what is possible without waiting.
    pub fn go_on(&mut self) -> Supervision {
        self.send();
        if let Some(end) = self.receive() {
            return Supervision::Ended(end);
        }
        if self.deadline().is_some_and(|at| Instant::now() >= at) {
            let late = failure(FailureKind::Request, 0, "no answer from the first process");
            return Supervision::Ended(Answer::Failed(late));
        }
        Supervision::Running { is_started: self.is_started }
    }

    fn send(&mut self) {
        while self.is_greeted && self.sent < self.outgoing.len() {
            let left = &self.outgoing[self.sent..];
            let streams = self.streams.iter().flatten().map(|fd| fd.as_fd());
            let streams: Vec<BorrowedFd<'_>> = streams.collect();
            // One that is gone is seen when it is read from.
            let Ok(count) = os::send_with(self.socket.as_fd(), left, &streams) else { return };
            self.sent += count;
            self.streams = None;
        }
        if self.sent == self.outgoing.len() && self.is_greeted {
            // Secrets, and as long as the environment is.
            self.outgoing = Vec::new();
            self.sent = 0;
        }
    }

    /// Returns how the step ended, once it has.
    fn receive(&mut self) -> Option<Answer> {
        let watcher = || Answer::Failed(failure(FailureKind::Watcher, 0, "step"));
        let mut bytes = [0; 4096];
        loop {
            match os::receive(self.socket.as_fd(), &mut bytes, &mut Vec::new()) {
                Ok(count) if count > 0 => self.frames.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // The supervisor is gone, or what it was a child of.
                _ => return Some(watcher()),
            }
            loop {
                let answer = match self.frames.take() {
                    Ok(Some((kind, payload))) => Answer::decode(kind, &payload),
                    Ok(None) => break,
                    Err(error) => Err(error),
                };
                match answer {
                    Ok(Answer::Hello(_)) => {
                        self.is_greeted = true;
                        self.send();
                    }
                    Ok(Answer::Started) => self.is_started = true,
                    Ok(end) => return Some(end),
                    Err(_) => return Some(watcher()),
                }
            }
        }
    }
}

fn failure(kind: FailureKind, errno: i32, path: &str) -> Failure {
    Failure { kind, errno, path: path.as_bytes().to_vec(), found: Vec::new() }
}

/// Returns what goes with a step, and our ends of its output and errors. There is nothing to read for it.
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
