//! The host's end of a connection.

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use oci_hooks::sys::init::frames::{
    Answer, Failure, Frames, MAX_ANSWER_BYTES, Request, STREAMS, Step, VERSIONS,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::first::DEADLINE;

pub(crate) struct Connection {
    pub(crate) socket: UnixStream,
    frames: Frames,
}

/// What a step is given to read, and where it writes.
pub(crate) struct Pipes {
    pub(crate) input: File,
    pub(crate) output: File,
    pub(crate) errors: File,
    theirs: [OwnedFd; STREAMS],
}

/// How a step ended, and what it wrote until then.
pub(crate) struct Ended {
    pub(crate) answer: Answer,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Pipes {
    pub(crate) fn new() -> Self {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((i, input), (output, o), (errors, e)) = (pipe(), pipe(), pipe());
        let (output_too, errors_too) = (output.try_clone().unwrap(), errors.try_clone().unwrap());
        let theirs = [i, o, e, output_too, errors_too];
        Pipes { input: input.into(), output: output.into(), errors: errors.into(), theirs }
    }
}

impl Connection {
    pub(crate) fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Connection { socket, frames: Frames::new(MAX_ANSWER_BYTES) }
    }

    pub(crate) fn hello(&mut self) {
        assert_eq!(self.answer(), Some(Answer::Hello(VERSIONS)));
    }

    /// Returns the next answer; nothing if the other end has closed the connection.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        loop {
            if let Some((kind, payload)) = self.frames.take().unwrap() {
                return Some(Answer::decode(kind, &payload).unwrap());
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

    pub(crate) fn send(&mut self, request: &Request) {
        self.socket.write_all(&request.encode().unwrap()).unwrap();
    }

    /// Sends bytes with descriptors.
    pub(crate) fn send_with(&mut self, bytes: &[u8], descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
        self.socket.write_all(&bytes[sent..]).unwrap();
    }

    /// Asks for a step; returns its pipes.
    pub(crate) fn ask(&mut self, step: Step) -> Pipes {
        let pipes = Pipes::new();
        let request = Request::Step(Box::new(step)).encode().unwrap();
        self.send_with(&request, &pipes.theirs);
        pipes
    }

    /// Starts a step; returns its pipes, of which the other end has its own.
    pub(crate) fn start(&mut self, step: Step) -> Pipes {
        let pipes = self.ask(step);
        assert_eq!(self.answer(), Some(Answer::Started));
        pipes
    }

    /// Runs a step to its end, with nothing to read.
    pub(crate) fn run(&mut self, step: Step) -> Ended {
        self.run_with(step, b"")
    }

    pub(crate) fn run_with(&mut self, step: Step, input: &[u8]) -> Ended {
        let Pipes { input: mut to, output, errors, theirs } = self.ask(step);
        drop(theirs);
        to.write_all(input).unwrap();
        drop(to);
        let mut answer = self.answer().unwrap();
        if answer == Answer::Started {
            answer = self.answer().unwrap();
        }
        Ended { answer, output: available(output), errors: available(errors) }
    }

    /// Runs a step that cannot be started.
    pub(crate) fn fail(&mut self, step: Step) -> Failure {
        match self.run(step).answer {
            Answer::Failed(failure) => failure,
            other => panic!("it did not fail: {other:?}"),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A process that another test has just made may hold a copy of the descriptor for a moment.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Returns what a pipe has, and what comes until nothing does for a moment.
pub(crate) fn available(mut pipe: File) -> String {
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
pub(crate) fn line(pipe: &mut File) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while pipe.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Returns a step of a program.
pub(crate) fn step(words: &[&str]) -> Step {
    Step { args: words.iter().map(|word| word.as_bytes().to_vec()).collect(), ..Step::default() }
}

/// Returns a step of a script.
pub(crate) fn script(text: &str) -> Step {
    step(&["sh", "-c", text])
}
