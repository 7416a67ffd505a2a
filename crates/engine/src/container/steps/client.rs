//! The host's end of a step: request, signals, output, and exit status.
//!
//! One thread waits for all events. Answers come from a hostile job: they are bounded, must come in order and
//! in time, and only the exit status is believed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use oci_hooks_init::drain::Drain;
use oci_hooks_init::frames::{
    ContainerStep, DEAD_WITHIN_SECONDS, FrameBuffer, MAX_ANSWER_BYTES, STREAMS, StepAnswer,
    StepFailure, StepRequest, TerminalSize, VERSIONS,
};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::process::Signal;
use rustix::termios::tcgetwinsize;
use tracing::debug;

use super::error::StepError;
use super::socket::StepSocket;
use super::streams::{StepInput, StepStream, pipes};

/// Timeout for the first process to send its hello, which it delays until a cancelled step is dead, and then to
/// start the program on a busy machine.
const ANSWER: Duration = Duration::from_secs(DEAD_WITHIN_SECONDS + 15);

/// Time between `SIGTERM` and killing the step: the runner kills this process a second later.
const TERM_GRACE: Duration = Duration::from_millis(1500);

/// End of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    Exited(u8),
    /// Killed by the signal with this number.
    Signalled(u8),
}

impl StepEnd {
    /// Returns the exit code as in a shell: 128 plus the signal if the step was killed.
    pub fn code(self) -> u8 {
        match self {
            StepEnd::Exited(code) => code,
            StepEnd::Signalled(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// Signals to this process, which are forwarded to the step.
pub trait StepSignals {
    /// Returns a descriptor that is readable if signals are pending.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the numbers of pending signals, and clears them.
    fn take(&mut self) -> Vec<i32>;
}

/// A connection to a first process that starts steps.
#[derive(Debug)]
pub struct StepConnection {
    socket: OwnedFd,
    answer_within: Duration,
}

impl StepConnection {
    /// Connects to the first process of a container.
    pub fn open(socket: StepSocket<'_>) -> Result<Self, StepError> {
        let connected = socket.connect()?;
        debug!(id = socket.id, "execute in the container by its first process");
        Ok(StepConnection { socket: connected, answer_within: ANSWER })
    }

    /// Runs a step to its end, and forwards its output. Background processes of the step continue; their
    /// later output goes to the container's log.
    ///
    /// Signals go to all processes of the step, which are all killed if this process ends.
    pub fn run(
        self,
        step: ContainerStep,
        signals: &mut dyn StepSignals,
        [stdout, stderr]: [BorrowedFd<'_>; 2],
    ) -> Result<StepEnd, StepError> {
        self.run_with(step, signals, None, [stdout, stderr])
    }

    /// Runs a step as [`run`](Self::run) does, with input too. If the input is a terminal, the step gets a terminal
    /// of its own with the same size, which follows `SIGWINCH`; the caller puts ours into raw mode.
    pub fn run_with_input(
        self,
        mut step: ContainerStep,
        signals: &mut dyn StepSignals,
        input: BorrowedFd<'_>,
        output: [BorrowedFd<'_>; 2],
    ) -> Result<StepEnd, StepError> {
        step.terminal = size(input);
        self.run_with(step, signals, Some(input), output)
    }

    fn run_with(
        self,
        step: ContainerStep,
        signals: &mut dyn StepSignals,
        input: Option<BorrowedFd<'_>>,
        [stdout, stderr]: [BorrowedFd<'_>; 2],
    ) -> Result<StepEnd, StepError> {
        let terminal = input.filter(|_| step.terminal.is_some());
        let frame = StepRequest::Step(Box::new(step)).encode().map_err(StepError::Request)?;
        let streams = |error: Errno| StepError::Streams(error.into());
        let (mut descriptors, [output, errors]) = pipes().map_err(streams)?;
        let input = input.map(StepInput::new).transpose().map_err(streams)?;
        let input = input.map(|(end, input)| {
            descriptors[0] = end;
            input
        });
        let mut outgoing = SendBuffer::default();
        outgoing.push_step(frame, descriptors);
        let client = StepDriver {
            socket: self.socket,
            frames: FrameBuffer::new(MAX_ANSWER_BYTES),
            outgoing,
            input,
            terminal,
            streams: [StepStream::new(output, stdout), StepStream::new(errors, stderr)],
            phase: StepPhase::Hello,
            answer_by: Instant::now() + self.answer_within,
            answer_within: self.answer_within,
            kill_at: None,
        };
        client.run(signals)
    }
}

/// Returns the size of a terminal; none for anything else.
fn size(terminal: BorrowedFd<'_>) -> Option<TerminalSize> {
    let size = tcgetwinsize(terminal).ok()?;
    Some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

enum StepPhase {
    Hello,
    Start,
    Running,
    Draining(DrainState),
}

struct DrainState {
    /// `None` if the first process disconnected, or reported a failure.
    end: Option<StepEnd>,
    failure: Option<StepFailure>,
    drain: Drain,
    /// If set, this process was told to end meanwhile.
    is_interrupted: bool,
}

impl DrainState {
    fn result(&self) -> Result<StepEnd, StepError> {
        match (self.end, &self.failure) {
            (Some(end), _) => Ok(end),
            (None, Some(failure)) => Err(StepError::Failed(failure.clone())),
            (None, None) => Err(StepError::Lost),
        }
    }
}

struct StepDriver<'a> {
    socket: OwnedFd,
    frames: FrameBuffer,
    outgoing: SendBuffer,
    /// None without input, and after its end.
    input: Option<StepInput<'a>>,
    /// Our terminal, whose size the step's terminal follows.
    terminal: Option<BorrowedFd<'a>>,
    streams: [StepStream<'a>; 2],
    phase: StepPhase,
    answer_by: Instant,
    answer_within: Duration,
    kill_at: Option<Instant>,
}

/// Sources that have events to handle.
#[derive(Default)]
struct ReadyEvents {
    signals: bool,
    socket: bool,
    input: bool,
}

impl StepDriver<'_> {
    fn run(mut self, signals: &mut dyn StepSignals) -> Result<StepEnd, StepError> {
        loop {
            if let Some(end) = self.step_result() {
                return end;
            }
            let ready = self.wait(&*signals)?;
            if ready.signals {
                for signal in signals.take() {
                    self.signal(signal)?;
                }
            }
            if ready.input
                && let Some(input) = &mut self.input
            {
                let goes_on = input.pass().map_err(|error| StepError::Streams(error.into()))?;
                // Closing the pipe ends the step's input.
                self.input = self.input.take().filter(|_| goes_on);
            }
            // Output from before an answer is forwarded before the answer is handled.
            self.pass()?;
            if ready.socket {
                self.receive()?;
            }
            self.send()?;
            self.check_time()?;
        }
    }

    /// Returns the result of the step, once nothing is left to do.
    fn step_result(&self) -> Option<Result<StepEnd, StepError>> {
        let StepPhase::Draining(draining) = &self.phase else { return None };
        let is_over = draining.is_interrupted
            || self.streams.iter().all(StepStream::is_closed)
            || (draining.drain.is_over() && self.streams.iter().all(StepStream::is_settled));
        is_over.then(|| draining.result())
    }

    fn wait(&self, signals: &dyn StepSignals) -> Result<ReadyEvents, StepError> {
        let mut polled = vec![PollFd::from_borrowed_fd(signals.descriptor(), PollFlags::IN)];
        let is_draining = matches!(self.phase, StepPhase::Draining(_));
        if !is_draining {
            // Requests are sent after the hello.
            let writes = !self.outgoing.is_empty() && !matches!(self.phase, StepPhase::Hello);
            let out = if writes { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::new(&self.socket, PollFlags::IN | out));
        }
        let input = self.input.as_ref().filter(|_| !is_draining);
        let input_at = input.map(|input| {
            polled.push(input.poll());
            polled.len() - 1
        });
        polled.extend(self.streams.iter().filter_map(StepStream::poll));
        let timeout = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(StepError::Streams(error.into())),
        }
        let is_ready = |at: usize| !polled[at].revents().is_empty();
        Ok(ReadyEvents {
            signals: is_ready(0),
            socket: !is_draining && is_ready(1),
            input: input_at.is_some_and(is_ready),
        })
    }

    /// Returns the time of the next action that needs no event.
    fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            StepPhase::Hello | StepPhase::Start => Some(self.answer_by),
            StepPhase::Running => None,
            // Output from before the end is forwarded first.
            StepPhase::Draining(_) if !self.streams.iter().all(StepStream::is_settled) => None,
            StepPhase::Draining(draining) => Some(draining.drain.ends_at()),
        };
        phase.into_iter().chain(self.kill_at).min()
    }

    fn signal(&mut self, signal: i32) -> Result<(), StepError> {
        if signal == Signal::WINCH.as_raw() {
            let size = self.terminal.and_then(size);
            return size.map_or(Ok(()), |size| self.request(&StepRequest::Resize(size)));
        }
        match &mut self.phase {
            StepPhase::Hello => return Err(StepError::Interrupted(signal)),
            // The step has ended, and the rest of its output can be dropped.
            StepPhase::Draining(draining) => {
                draining.is_interrupted = true;
                return Ok(());
            }
            StepPhase::Start | StepPhase::Running => {}
        }
        debug!(signal, "pass a signal on to the step");
        self.request(&StepRequest::Signal(signal))?;
        if signal == Signal::TERM.as_raw() {
            self.kill_at.get_or_insert_with(|| Instant::now() + TERM_GRACE);
        }
        Ok(())
    }

    fn request(&mut self, request: &StepRequest) -> Result<(), StepError> {
        self.outgoing.push(&request.encode().map_err(StepError::Request)?);
        Ok(())
    }

    fn check_time(&mut self) -> Result<(), StepError> {
        let now = Instant::now();
        if matches!(self.phase, StepPhase::Hello | StepPhase::Start) && now >= self.answer_by {
            return Err(StepError::Silent(self.answer_within));
        }
        if self.kill_at.is_some_and(|at| now >= at) && !matches!(self.phase, StepPhase::Draining(_))
        {
            debug!("kill the step");
            self.request(&StepRequest::Signal(Signal::KILL.as_raw()))?;
        }
        self.kill_at = self.kill_at.filter(|at| now < *at);
        Ok(())
    }

    fn send(&mut self) -> Result<(), StepError> {
        if matches!(self.phase, StepPhase::Hello | StepPhase::Draining(_)) {
            return Ok(());
        }
        match self.outgoing.send(self.socket.as_fd()) {
            // Earlier answers are read first.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(StepError::Streams(error.into())),
        }
    }

    fn receive(&mut self) -> Result<(), StepError> {
        let mut buffer = [0; 4096];
        match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => self.handle_disconnect(),
            Ok((count, _)) => {
                self.frames.push(&buffer[..count]);
                while let Some(answer) =
                    self.frames.decode_next(StepAnswer::decode).map_err(StepError::Answer)?
                {
                    self.take(answer)?;
                    if matches!(self.phase, StepPhase::Draining(_)) {
                        break;
                    }
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(StepError::Streams(error.into())),
        }
    }

    /// Handles a disconnected first process. Before its hello, no request was sent.
    fn handle_disconnect(&mut self) -> Result<(), StepError> {
        if matches!(self.phase, StepPhase::Hello) {
            return Err(StepError::Disconnected);
        }
        self.end(None, None);
        Ok(())
    }

    fn end(&mut self, end: Option<StepEnd>, failure: Option<StepFailure>) {
        debug!(?end, "the step ended");
        for stream in &mut self.streams {
            stream.end();
        }
        let draining = DrainState { end, failure, drain: Drain::start(), is_interrupted: false };
        self.phase = StepPhase::Draining(draining);
    }

    fn take(&mut self, answer: StepAnswer) -> Result<(), StepError> {
        match (&self.phase, answer) {
            (StepPhase::Hello, StepAnswer::Hello(hello)) => {
                if VERSIONS.common_version(hello).is_none() {
                    return Err(StepError::Version(hello.oldest, hello.newest));
                }
                self.phase = StepPhase::Start;
                self.answer_by = Instant::now() + self.answer_within;
            }
            (StepPhase::Start, StepAnswer::Started) => self.phase = StepPhase::Running,
            (StepPhase::Hello | StepPhase::Start, StepAnswer::Failed(failure)) => {
                return Err(StepError::Failed(failure));
            }
            (StepPhase::Running, StepAnswer::Failed(failure)) => self.end(None, Some(failure)),
            (StepPhase::Running, StepAnswer::Exited(code)) => {
                self.end(Some(StepEnd::Exited(code)), None);
            }
            (StepPhase::Running, StepAnswer::Signalled(signal)) => {
                self.end(Some(StepEnd::Signalled(signal)), None);
            }
            (_, answer) => return Err(StepError::OutOfTurn(name(&answer))),
        }
        Ok(())
    }

    fn pass(&mut self) -> Result<(), StepError> {
        let mut has_passed = false;
        for stream in &mut self.streams {
            has_passed |= stream.pass().map_err(|error| StepError::Streams(error.into()))?;
        }
        if let StepPhase::Draining(draining) = &mut self.phase
            && has_passed
        {
            draining.drain.prolong();
        }
        Ok(())
    }
}

fn name(answer: &StepAnswer) -> &'static str {
    match answer {
        StepAnswer::Hello(_) => "hello",
        StepAnswer::Started => "started",
        StepAnswer::Exited(_) => "exited",
        StepAnswer::Signalled(_) => "signalled",
        StepAnswer::Failed(_) => "failed",
    }
}

/// Requests that are not yet sent: their bytes, and the number of bytes already sent.
#[derive(Default)]
struct SendBuffer {
    bytes: Vec<u8>,
    sent: usize,
    /// Descriptors to send with the next byte, and to close then.
    descriptors: Option<[OwnedFd; STREAMS]>,
}

impl SendBuffer {
    /// Queues a step and its streams as the first request.
    fn push_step(&mut self, frame: Vec<u8>, descriptors: [OwnedFd; STREAMS]) {
        self.bytes = frame;
        self.sent = 0;
        self.descriptors = Some(descriptors);
    }

    /// Queues a frame after the pending ones.
    pub fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
    }

    /// Returns whether everything has been sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends as much as the socket takes now.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            let rest = &self.bytes[self.sent..];
            let result = match &self.descriptors {
                Some(descriptors) => send_with(socket, rest, descriptors),
                None => send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
            };
            match result {
                Ok(count) => {
                    self.sent += count;
                    self.descriptors = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // Frees the buffer, which is as large as a step and may contain secrets.
        *self = SendBuffer::default();
        Ok(())
    }
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[OwnedFd; STREAMS],
) -> Result<usize, Errno> {
    let descriptors = descriptors.each_ref().map(|descriptor| descriptor.as_fd());
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{IoSliceMut, Read as _, Write as _};
    use std::mem::MaybeUninit;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use oci_hooks_init::drain;
    use oci_hooks_init::frames::{FailureKind, Hello, MAX_REQUEST_BYTES, STREAMS};
    use oci_hooks_testsupport::program::DEADLINE;
    use rustix::cmsg_space;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// The container's end, which answers as the test says.
    struct FakeInit {
        socket: UnixStream,
        frames: FrameBuffer,
        streams: Vec<OwnedFd>,
    }

    impl FakeInit {
        fn send_answer(&mut self, answer: &StepAnswer) {
            self.socket.write_all(&answer.encode()).unwrap();
        }

        fn hello(&mut self) {
            self.send_answer(&StepAnswer::Hello(VERSIONS));
        }

        /// Returns the next request; `None` if the host has disconnected.
        fn take(&mut self) -> Option<StepRequest> {
            loop {
                if let Some(request) = self.frames.decode_next(StepRequest::decode).unwrap() {
                    return Some(request);
                }
                let mut bytes = vec![0; 64 << 10];
                let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let received =
                    recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
                let count = received.unwrap().bytes;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        self.streams.extend(descriptors);
                    }
                }
                if count == 0 {
                    return None;
                }
                self.frames.push(&bytes[..count]);
            }
        }

        /// Takes the step, and returns the write ends of its program's output.
        fn start(&mut self) -> [File; 2] {
            self.hello();
            assert!(matches!(self.take(), Some(StepRequest::Step(_))));
            self.send_answer(&StepAnswer::Started);
            assert_eq!(self.streams.len(), STREAMS);
            let mut streams = self.streams.drain(1..3);
            [streams.next().unwrap().into(), streams.next().unwrap().into()]
        }
    }

    /// Signals that a test sends.
    struct ScriptedSignals(UnixStream);

    impl StepSignals for ScriptedSignals {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn take(&mut self) -> Vec<i32> {
            let mut bytes = [0; 8];
            let count = self.0.read(&mut bytes).unwrap();
            bytes[..count].iter().map(|byte| i32::from(*byte)).collect()
        }
    }

    /// Returns the result and output of a step with a scripted first process, which can also send signals to
    /// the host's end.
    fn run_script(
        answer_within: Duration,
        first: impl FnOnce(FakeInit, UnixStream) + Send,
    ) -> (Result<StepEnd, StepError>, [Vec<u8>; 2]) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (signals, signaller) = UnixStream::pair().unwrap();
        let frames = FrameBuffer::new(MAX_REQUEST_BYTES);
        let first_end = FakeInit { socket: theirs, frames, streams: Vec::new() };
        let connection = StepConnection { socket: ours.into(), answer_within };
        let step = ContainerStep {
            args: vec![b"sh".to_vec()],
            env: vec![(b"SECRET".to_vec(), vec![b'x'; 3 << 20])],
            ..ContainerStep::default()
        };
        thread::scope(|scope| {
            scope.spawn(|| first(first_end, signaller));
            let (pipes, readers): (Vec<_>, Vec<_>) = [(), ()]
                .map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap())
                .map(|(reader, writer)| (writer, File::from(reader)))
                .into_iter()
                .unzip();
            let readers: Vec<_> = readers
                .into_iter()
                .map(|mut reader| {
                    scope.spawn(move || {
                        let mut bytes = Vec::new();
                        reader.read_to_end(&mut bytes).unwrap();
                        bytes
                    })
                })
                .collect();
            let result = connection.run(
                step,
                &mut ScriptedSignals(signals),
                [pipes[0].as_fd(), pipes[1].as_fd()],
            );
            drop(pipes);
            let mut written = readers.into_iter().map(|reader| reader.join().unwrap());
            (result, [written.next().unwrap(), written.next().unwrap()])
        })
    }

    #[test]
    fn output_and_exit_code_of_a_step_are_passed_on() {
        let (end, [out, err]) = run_script(DEADLINE, |mut first, _signals| {
            let [mut out, mut err] = first.start();
            let megabyte = vec![b'x'; 1 << 20];
            for _ in 0..8 {
                out.write_all(&megabyte).unwrap();
            }
            err.write_all(b"oops").unwrap();
            first.send_answer(&StepAnswer::Exited(7));
        });
        assert_eq!(end.unwrap(), StepEnd::Exited(7));
        assert_eq!((out.len(), err.as_slice()), (8 << 20, &b"oops"[..]));

        let (end, _) = run_script(DEADLINE, |mut first, _signals| {
            drop(first.start());
            first.send_answer(&StepAnswer::Signalled(9));
        });
        assert_eq!(end.unwrap().code(), 137);
    }

    #[test]
    fn background_output_is_read_until_it_pauses() {
        let began = Instant::now();
        let (end, [out, _]) = run_script(DEADLINE, |mut first, _signals| {
            let [mut out, _err] = first.start();
            out.write_all(b"listening\n").unwrap();
            first.send_answer(&StepAnswer::Exited(0));
            assert_eq!(first.take(), None, "the host goes");
        });
        assert!(began.elapsed() >= drain::QUIET);
        assert_eq!((end.unwrap().code(), out.as_slice()), (0, &b"listening\n"[..]));
    }

    #[test]
    fn endless_background_output_is_read_for_a_limited_time() {
        let began = Instant::now();
        let (end, [out, _]) = run_script(DEADLINE, |mut first, _signals| {
            let [mut out, _err] = first.start();
            first.send_answer(&StepAnswer::Exited(0));
            first.socket.set_nonblocking(true).unwrap();
            let mut byte = [0];
            // No reader is left after the host disconnects, because this end drops its own.
            first.streams.clear();
            while first.socket.read(&mut byte).is_err() && out.write_all(b"y\n").is_ok() {}
        });
        assert!(began.elapsed() >= drain::LIMIT);
        assert!(end.is_ok() && !out.is_empty());
    }

    #[test]
    fn signals_reach_the_step_which_is_killed_if_it_stays() {
        let (end, _) = run_script(DEADLINE, |mut first, mut signals| {
            drop(first.start());
            let told = Instant::now();
            for signal in [2, 15] {
                signals.write_all(&[signal]).unwrap();
                assert_eq!(first.take(), Some(StepRequest::Signal(signal.into())));
            }
            assert_eq!(first.take(), Some(StepRequest::Signal(9)));
            assert!(told.elapsed() >= TERM_GRACE);
            first.send_answer(&StepAnswer::Signalled(9));
        });
        assert_eq!(end.unwrap(), StepEnd::Signalled(9));

        let (end, _) = run_script(DEADLINE, |mut first, mut signals| {
            signals.write_all(&[2]).unwrap();
            assert_eq!(first.take(), None, "nothing was sent yet");
        });
        assert_eq!(end.unwrap_err().code(), 130);
    }

    #[test]
    fn end_of_the_container_ends_the_step_but_keeps_its_output() {
        let (end, [out, _]) = run_script(DEADLINE, |mut first, _signals| {
            let [mut out, _err] = first.start();
            out.write_all(b"last words").unwrap();
        });
        assert!(matches!(end, Err(StepError::Lost)));
        assert_eq!(out, b"last words");
    }

    #[test]
    fn unsupported_init_is_distinguished_from_other_errors() {
        let (end, _) = run_script(DEADLINE, |first, _signals| drop(first));
        assert!(end.unwrap_err().is_unavailable());
        let (end, _) = run_script(DEADLINE, |mut first, _signals| {
            first.send_answer(&StepAnswer::Hello(Hello { oldest: 7, newest: 9 }));
            assert_eq!(first.take(), None);
        });
        assert!(end.unwrap_err().is_unavailable());
        let (end, _) = run_script(DEADLINE, |mut first, _signals| {
            first.hello();
            first.take().unwrap();
            let (path, found) = (b"zsh".to_vec(), vec![b"sh".to_vec()]);
            let failure = StepFailure { kind: FailureKind::ProgramMissing, errno: 2, path, found };
            first.send_answer(&StepAnswer::Failed(failure));
        });
        let error = end.unwrap_err();
        assert!(!error.is_unavailable() && error.code() == 127, "{error}");
    }

    #[test]
    fn hostile_first_process_is_limited() {
        let short = Duration::from_millis(300);
        let (end, _) = run_script(short, |mut first, _signals| assert_eq!(first.take(), None));
        assert!(matches!(end, Err(StepError::Silent(_))));
        let (end, _) = run_script(short, |mut first, _signals| {
            // On a busy machine, the host may have given up.
            let _ = first.socket.write_all(&StepAnswer::Hello(VERSIONS).encode());
            // It takes the step, but does not answer.
            while first.take().is_some() {}
        });
        assert!(matches!(end, Err(StepError::Silent(_))));
        let endless: [&[u8]; 4] =
            [&[0xff; 4096], &[0; 4096], &StepAnswer::Started.encode(), b"\x02\x10\x27\0\0"];
        for bytes in endless {
            let (end, _) = run_script(
                DEADLINE,
                |mut first, _signals| while first.socket.write_all(bytes).is_ok() {},
            );
            let error = end.unwrap_err();
            assert!(matches!(error, StepError::Answer(_) | StepError::OutOfTurn(_)), "{error}");
            assert!(!error.is_unavailable());
        }
        let (end, _) = run_script(DEADLINE, |mut first, _signals| {
            let _streams = first.start();
            while first.socket.write_all(&StepAnswer::Started.encode()).is_ok() {}
        });
        assert!(matches!(end, Err(StepError::OutOfTurn("started"))));
    }
}
