//! The host's end of a connection.

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use oci_hooks_init::frames::{
    ContainerStep, FrameBuffer, MAX_ANSWER_BYTES, STREAMS, StepAnswer, StepFailure, StepRequest,
    VERSIONS,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::first::DEADLINE;

pub struct TestConnection {
    pub socket: UnixStream,
    frames: FrameBuffer,
}

/// Standard streams of a step.
pub struct StepPipes {
    pub input: File,
    pub output: File,
    pub errors: File,
    pub theirs: [OwnedFd; STREAMS],
}

/// End of a step, and its output until then.
pub struct EndedStep {
    pub answer: StepAnswer,
    pub output: String,
    pub errors: String,
}

impl StepPipes {
    pub fn new() -> Self {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((i, input), (output, o), (errors, e)) = (pipe(), pipe(), pipe());
        let (output_too, errors_too) = (output.try_clone().unwrap(), errors.try_clone().unwrap());
        let theirs = [i, o, e, output_too, errors_too];
        StepPipes { input: input.into(), output: output.into(), errors: errors.into(), theirs }
    }
}

impl TestConnection {
    pub fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        TestConnection { socket, frames: FrameBuffer::new(MAX_ANSWER_BYTES) }
    }

    pub fn hello(&mut self) {
        assert_eq!(self.answer(), Some(StepAnswer::Hello(VERSIONS)));
    }

    /// Returns the next answer, or `None` if the other end has closed the connection.
    pub fn answer(&mut self) -> Option<StepAnswer> {
        loop {
            if let Some(answer) = self.frames.decode_next(StepAnswer::decode).unwrap() {
                return Some(answer);
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.frames.push(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    pub fn send(&mut self, request: &StepRequest) {
        self.socket.write_all(&request.encode().unwrap()).unwrap();
    }

    /// Sends bytes with descriptors.
    pub fn send_with(&mut self, bytes: &[u8], descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
        self.socket.write_all(&bytes[sent..]).unwrap();
    }

    /// Requests a step; returns its pipes.
    pub fn ask(&mut self, step: ContainerStep) -> StepPipes {
        let pipes = StepPipes::new();
        let request = StepRequest::Step(Box::new(step)).encode().unwrap();
        self.send_with(&request, &pipes.theirs);
        pipes
    }

    /// Starts a step; returns its pipes, of which the first process has duplicates.
    pub fn start(&mut self, step: ContainerStep) -> StepPipes {
        let pipes = self.ask(step);
        assert_eq!(self.answer(), Some(StepAnswer::Started));
        pipes
    }

    /// Runs a step to its end, with empty input.
    pub fn run(&mut self, step: ContainerStep) -> EndedStep {
        self.run_with(step, b"")
    }

    pub fn run_with(&mut self, step: ContainerStep, input: &[u8]) -> EndedStep {
        let StepPipes { input: mut to, output, errors, theirs } = self.ask(step);
        drop(theirs);
        to.write_all(input).unwrap();
        drop(to);
        let mut answer = self.answer().unwrap();
        if answer == StepAnswer::Started {
            answer = self.answer().unwrap();
        }
        EndedStep { answer, output: read_available(output), errors: read_available(errors) }
    }

    /// Runs a step that cannot be started.
    pub fn fail(&mut self, step: ContainerStep) -> StepFailure {
        match self.run(step).answer {
            StepAnswer::Failed(failure) => failure,
            other => panic!("it did not fail: {other:?}"),
        }
    }
}

impl Drop for TestConnection {
    fn drop(&mut self) {
        // A process that another test has just forked may hold a copy of the descriptor for a
        // moment.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Returns the content of a pipe, read until it is silent for a moment.
pub fn read_available(mut pipe: File) -> String {
    const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut text = Vec::new();
    let mut bytes = [0; 65536];
    while poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&MOMENT)).unwrap() == 1 {
        match pipe.read(&mut bytes).unwrap() {
            0 => break,
            count => text.extend_from_slice(&bytes[..count]),
        }
    }
    String::from_utf8(text).unwrap()
}

/// Reads a line of a pipe.
pub fn line(pipe: &mut File) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while pipe.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Returns a step that runs a program.
pub fn step(words: &[&str]) -> ContainerStep {
    ContainerStep {
        args: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        ..ContainerStep::default()
    }
}

/// Returns a step that runs a script.
pub fn script(text: &str) -> ContainerStep {
    step(&["sh", "-c", text])
}
