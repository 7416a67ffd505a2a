//! The host's end of a step: a request, signals, what is written, and how it ended.
//!
//! One thread waits for all of it. What the other end says is a hostile job's: it is bounded, has to
//! come in turn and in time, and nothing but how the step ended is believed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::process::Signal;
use tracing::debug;

use super::error::StepError;
use super::socket::StepSocket;
use super::streams::{Stream, pipes};
use crate::sys::init::drain::Drain;
use crate::sys::init::frames::{
    Answer, DEAD_WITHIN_SECONDS, Failure, Frames, MAX_ANSWER_BYTES, Request, STREAMS, Step,
    VERSIONS,
};

/// How long a first process may take to say hello, which waits for a cancelled step to be dead, and to
/// start a program, on a machine that has much else to do.
const ANSWER: Duration = Duration::from_secs(DEAD_WITHIN_SECONDS + 15);

/// How long a step may take to end after `SIGTERM` before it is killed: the runner kills us a second
/// later.
const TERM_GRACE: Duration = Duration::from_millis(1500);

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    Exited(u8),
    /// By the signal with this number.
    Signalled(u8),
}

impl StepEnd {
    /// Returns the code as a shell has it: of a step that was killed, 128 and the signal.
    pub fn code(self) -> u8 {
        match self {
            StepEnd::Exited(code) => code,
            StepEnd::Signalled(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// Signals that this process gets, for the step instead.
pub trait StepSignals {
    /// Returns what is readable when there are some.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the numbers of those that came, which are taken.
    fn take(&mut self) -> Vec<i32>;
}

/// A connection to a first process that takes steps.
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

    /// Has a step run to its end, and passes on what it writes. What it leaves running lives on; what
    /// that writes later goes to the container's log.
    ///
    /// Signals go to all processes of the step; if this process ends, all of them are killed.
    pub fn run(
        self,
        step: Step,
        signals: &mut dyn StepSignals,
        [stdout, stderr]: [BorrowedFd<'_>; 2],
    ) -> Result<StepEnd, StepError> {
        let frame = Request::Step(Box::new(step)).encode().map_err(StepError::Request)?;
        let streams = |error: Errno| StepError::Streams(error.into());
        let (descriptors, [output, errors]) = pipes().map_err(streams)?;
        let mut outgoing = Outgoing::default();
        outgoing.push_step(frame, descriptors);
        let client = Client {
            socket: self.socket,
            frames: Frames::new(MAX_ANSWER_BYTES),
            outgoing,
            streams: [Stream::new(output, stdout), Stream::new(errors, stderr)],
            phase: Phase::Hello,
            answer_by: Instant::now() + self.answer_within,
            answer_within: self.answer_within,
            kill_at: None,
        };
        client.run(signals)
    }
}

/// What is waited for.
enum Phase {
    Hello,
    /// That the program is executed.
    Start,
    /// The program's end.
    Running,
    /// The rest of what is written.
    Draining(Draining),
}

struct Draining {
    /// None if the first process went away instead, or said why there is no end.
    end: Option<StepEnd>,
    failure: Option<Failure>,
    drain: Drain,
    /// Whether this process was told to end meanwhile.
    is_told: bool,
}

impl Draining {
    fn result(&self) -> Result<StepEnd, StepError> {
        match (self.end, &self.failure) {
            (Some(end), _) => Ok(end),
            (None, Some(failure)) => Err(StepError::Failed(failure.clone())),
            (None, None) => Err(StepError::Lost),
        }
    }
}

struct Client<'a> {
    socket: OwnedFd,
    frames: Frames,
    outgoing: Outgoing,
    streams: [Stream<'a>; 2],
    phase: Phase,
    answer_by: Instant,
    answer_within: Duration,
    kill_at: Option<Instant>,
}

/// What can be done now.
#[derive(Default)]
struct Ready {
    signals: bool,
    socket: bool,
}

impl Client<'_> {
    fn run(mut self, signals: &mut dyn StepSignals) -> Result<StepEnd, StepError> {
        loop {
            if let Some(end) = self.over() {
                return end;
            }
            let ready = self.wait(&*signals)?;
            if ready.signals {
                for signal in signals.take() {
                    self.signal(signal)?;
                }
            }
            // What was written before an answer came goes before what is said of that.
            self.pass()?;
            if ready.socket {
                self.receive()?;
            }
            self.send()?;
            self.check_time()?;
        }
    }

    /// Returns how the step ended, once there is nothing left to do.
    fn over(&self) -> Option<Result<StepEnd, StepError>> {
        let Phase::Draining(draining) = &self.phase else { return None };
        let is_over = draining.is_told
            || self.streams.iter().all(Stream::is_closed)
            || (draining.drain.is_over() && self.streams.iter().all(Stream::is_settled));
        is_over.then(|| draining.result())
    }

    fn wait(&self, signals: &dyn StepSignals) -> Result<Ready, StepError> {
        let mut polled = vec![PollFd::from_borrowed_fd(signals.descriptor(), PollFlags::IN)];
        let is_draining = matches!(self.phase, Phase::Draining(_));
        if !is_draining {
            // What is to be sent waits for the hello.
            let writes = !self.outgoing.is_empty() && !matches!(self.phase, Phase::Hello);
            let out = if writes { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::new(&self.socket, PollFlags::IN | out));
        }
        polled.extend(self.streams.iter().filter_map(Stream::poll));
        let timeout = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(StepError::Streams(error.into())),
        }
        let is_ready = |at: usize| !polled[at].revents().is_empty();
        Ok(Ready { signals: is_ready(0), socket: !is_draining && is_ready(1) })
    }

    /// Returns when there is something to do, whatever happens.
    fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Hello | Phase::Start => Some(self.answer_by),
            Phase::Running => None,
            // What was written before the end is passed on first.
            Phase::Draining(_) if !self.streams.iter().all(Stream::is_settled) => None,
            Phase::Draining(draining) => Some(draining.drain.ends_at()),
        };
        phase.into_iter().chain(self.kill_at).min()
    }

    fn signal(&mut self, signal: i32) -> Result<(), StepError> {
        match &mut self.phase {
            Phase::Hello => return Err(StepError::Interrupted(signal)),
            // It has ended, and nobody waits for the rest.
            Phase::Draining(draining) => {
                draining.is_told = true;
                return Ok(());
            }
            Phase::Start | Phase::Running => {}
        }
        debug!(signal, "pass a signal on to the step");
        self.request(&Request::Signal(signal))?;
        if signal == Signal::TERM.as_raw() {
            self.kill_at.get_or_insert_with(|| Instant::now() + TERM_GRACE);
        }
        Ok(())
    }

    fn request(&mut self, request: &Request) -> Result<(), StepError> {
        self.outgoing.push(&request.encode().map_err(StepError::Request)?);
        Ok(())
    }

    fn check_time(&mut self) -> Result<(), StepError> {
        let now = Instant::now();
        if matches!(self.phase, Phase::Hello | Phase::Start) && now >= self.answer_by {
            return Err(StepError::Silent(self.answer_within));
        }
        if self.kill_at.is_some_and(|at| now >= at) && !matches!(self.phase, Phase::Draining(_)) {
            debug!("kill the step");
            self.request(&Request::Kill)?;
        }
        self.kill_at = self.kill_at.filter(|at| now < *at);
        Ok(())
    }

    fn send(&mut self) -> Result<(), StepError> {
        if matches!(self.phase, Phase::Hello | Phase::Draining(_)) {
            return Ok(());
        }
        match self.outgoing.send(self.socket.as_fd()) {
            // What it said before is read first.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(StepError::Streams(error.into())),
        }
    }

    fn receive(&mut self) -> Result<(), StepError> {
        let mut buffer = [0; 4096];
        match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => self.lost(),
            Ok((count, _)) => {
                self.frames.push(&buffer[..count]);
                while let Some((kind, payload)) = self.frames.take().map_err(StepError::Answer)? {
                    self.take(Answer::decode(kind, &payload).map_err(StepError::Answer)?)?;
                    if matches!(self.phase, Phase::Draining(_)) {
                        break;
                    }
                }
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(StepError::Streams(error.into())),
        }
    }

    /// The first process went away: before it said hello nothing was sent to it.
    fn lost(&mut self) -> Result<(), StepError> {
        if matches!(self.phase, Phase::Hello) {
            return Err(StepError::Gone);
        }
        self.end(None, None);
        Ok(())
    }

    fn end(&mut self, end: Option<StepEnd>, failure: Option<Failure>) {
        debug!(?end, "the step ended");
        for stream in &mut self.streams {
            stream.end();
        }
        let draining = Draining { end, failure, drain: Drain::start(), is_told: false };
        self.phase = Phase::Draining(draining);
    }

    fn take(&mut self, answer: Answer) -> Result<(), StepError> {
        match (&self.phase, answer) {
            (Phase::Hello, Answer::Hello(hello)) => {
                if VERSIONS.common(hello).is_none() {
                    return Err(StepError::Version(hello.oldest, hello.newest));
                }
                self.phase = Phase::Start;
                self.answer_by = Instant::now() + self.answer_within;
            }
            (Phase::Start, Answer::Started) => self.phase = Phase::Running,
            (Phase::Hello | Phase::Start, Answer::Failed(failure)) => {
                return Err(StepError::Failed(failure));
            }
            (Phase::Running, Answer::Failed(failure)) => self.end(None, Some(failure)),
            (Phase::Running, Answer::Exited(code)) => self.end(Some(StepEnd::Exited(code)), None),
            (Phase::Running, Answer::Signalled(signal)) => {
                self.end(Some(StepEnd::Signalled(signal)), None);
            }
            (_, answer) => return Err(StepError::Turn(name(&answer))),
        }
        Ok(())
    }

    fn pass(&mut self) -> Result<(), StepError> {
        let mut has_passed = false;
        for stream in &mut self.streams {
            has_passed |= stream.pass().map_err(|error| StepError::Streams(error.into()))?;
        }
        if let Phase::Draining(draining) = &mut self.phase
            && has_passed
        {
            draining.drain.prolong();
        }
        Ok(())
    }
}

fn name(answer: &Answer) -> &'static str {
    match answer {
        Answer::Hello(_) => "hello",
        Answer::Started => "started",
        Answer::Exited(_) => "exited",
        Answer::Signalled(_) => "signalled",
        Answer::Failed(_) => "failed",
    }
}

/// Bytes to send, and how many have been.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Closed as soon as they are sent.
    descriptors: Option<[OwnedFd; STREAMS]>,
}

impl Outgoing {
    /// Sends a step and its streams next.
    fn push_step(&mut self, frame: Vec<u8>, descriptors: [OwnedFd; STREAMS]) {
        self.bytes = frame;
        self.sent = 0;
        self.descriptors = Some(descriptors);
    }

    /// Sends a frame after those that are pending.
    pub fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
    }

    /// Returns whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends what the socket takes now.
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
        // There may be secrets in it, and there is room for them no longer than for a step.
        *self = Outgoing::default();
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

    use rustix::cmsg_space;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::sys::init::drain;
    use crate::sys::init::frames::{FailureKind, Hello, MAX_REQUEST_BYTES, STREAMS};

    /// The other end, which answers as it is told.
    struct First {
        socket: UnixStream,
        frames: Frames,
        streams: Vec<OwnedFd>,
    }

    impl First {
        fn say(&mut self, answer: &Answer) {
            self.socket.write_all(&answer.encode()).unwrap();
        }

        fn hello(&mut self) {
            self.say(&Answer::Hello(VERSIONS));
        }

        /// Returns the next request; none when the host has gone.
        fn take(&mut self) -> Option<Request> {
            loop {
                if let Some((kind, payload)) = self.frames.take().unwrap() {
                    return Some(Request::decode(kind, &payload).unwrap());
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

        /// Takes the step, and returns where its program would write.
        fn start(&mut self) -> [File; 2] {
            self.hello();
            assert!(matches!(self.take(), Some(Request::Step(_))));
            self.say(&Answer::Started);
            assert_eq!(self.streams.len(), STREAMS);
            let mut streams = self.streams.drain(1..3);
            [streams.next().unwrap().into(), streams.next().unwrap().into()]
        }
    }

    /// Signals that a test sends.
    struct Sent(UnixStream);

    impl StepSignals for Sent {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn take(&mut self) -> Vec<i32> {
            let mut bytes = [0; 8];
            let count = self.0.read(&mut bytes).unwrap();
            bytes[..count].iter().map(|byte| i32::from(*byte)).collect()
        }
    }

    /// Returns how a step went, and what it wrote, beside a first process that does what it is told; that
    /// can send signals to this end.
    fn play(
        answer_within: Duration,
        first: impl FnOnce(First, UnixStream) + Send,
    ) -> (Result<StepEnd, StepError>, [Vec<u8>; 2]) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (signals, signaller) = UnixStream::pair().unwrap();
        let frames = Frames::new(MAX_REQUEST_BYTES);
        let first_end = First { socket: theirs, frames, streams: Vec::new() };
        let connection = StepConnection { socket: ours.into(), answer_within };
        let step = Step {
            args: vec![b"sh".to_vec()],
            env: vec![(b"SECRET".to_vec(), vec![b'x'; 3 << 20])],
            ..Step::default()
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
            let result =
                connection.run(step, &mut Sent(signals), [pipes[0].as_fd(), pipes[1].as_fd()]);
            drop(pipes);
            let mut written = readers.into_iter().map(|reader| reader.join().unwrap());
            (result, [written.next().unwrap(), written.next().unwrap()])
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_a_step_writes_and_how_it_ends_is_passed_on() {
        let (end, [out, err]) = play(LONG, |mut first, _signals| {
            let [mut out, mut err] = first.start();
            let megabyte = vec![b'x'; 1 << 20];
            for _ in 0..8 {
                out.write_all(&megabyte).unwrap();
            }
            err.write_all(b"oops").unwrap();
            first.say(&Answer::Exited(7));
        });
        assert_eq!(end.unwrap(), StepEnd::Exited(7));
        assert_eq!((out.len(), err.as_slice()), (8 << 20, &b"oops"[..]));

        let (end, _) = play(LONG, |mut first, _signals| {
            drop(first.start());
            first.say(&Answer::Signalled(9));
        });
        assert_eq!(end.unwrap().code(), 137);
    }

    #[test]
    fn what_is_left_running_is_listened_to_for_a_while() {
        // It writes nothing more.
        let began = Instant::now();
        let (end, [out, _]) = play(LONG, |mut first, _signals| {
            let [mut out, _err] = first.start();
            out.write_all(b"listening\n").unwrap();
            first.say(&Answer::Exited(0));
            assert_eq!(first.take(), None, "the host goes");
        });
        assert!(began.elapsed() >= drain::QUIET);
        assert_eq!((end.unwrap().code(), out.as_slice()), (0, &b"listening\n"[..]));

        // It goes on and on.
        let began = Instant::now();
        let (end, [out, _]) = play(LONG, |mut first, _signals| {
            let [mut out, _err] = first.start();
            first.say(&Answer::Exited(0));
            first.socket.set_nonblocking(true).unwrap();
            let mut byte = [0];
            // Nobody reads any more once the host has gone, and this end holds no reader here.
            first.streams.clear();
            while first.socket.read(&mut byte).is_err() && out.write_all(b"y\n").is_ok() {}
        });
        assert!(began.elapsed() >= drain::LIMIT);
        assert!(end.is_ok() && !out.is_empty());
    }

    #[test]
    fn signals_reach_the_step_and_one_that_stays_is_killed() {
        let (end, _) = play(LONG, |mut first, mut signals| {
            drop(first.start());
            for signal in [2, 15] {
                signals.write_all(&[signal]).unwrap();
                assert_eq!(first.take(), Some(Request::Signal(signal.into())));
            }
            let told = Instant::now();
            assert_eq!(first.take(), Some(Request::Kill));
            assert!(told.elapsed() >= TERM_GRACE / 2);
            first.say(&Answer::Signalled(9));
        });
        assert_eq!(end.unwrap(), StepEnd::Signalled(9));

        let (end, _) = play(LONG, |mut first, mut signals| {
            signals.write_all(&[2]).unwrap();
            assert_eq!(first.take(), None, "nothing was sent yet");
        });
        assert_eq!(end.unwrap_err().code(), 130);
    }

    #[test]
    fn a_container_that_ends_takes_the_step_with_it_but_not_what_it_wrote() {
        let (end, [out, _]) = play(LONG, |mut first, _signals| {
            let [mut out, _err] = first.start();
            out.write_all(b"last words").unwrap();
        });
        assert!(matches!(end, Err(StepError::Lost)));
        assert_eq!(out, b"last words");
    }

    #[test]
    fn what_cannot_be_run_in_this_way_is_told_apart() {
        let (end, _) = play(LONG, |first, _signals| drop(first));
        assert!(end.unwrap_err().is_unavailable());
        let (end, _) = play(LONG, |mut first, _signals| {
            first.say(&Answer::Hello(Hello { oldest: 7, newest: 9 }));
            assert_eq!(first.take(), None);
        });
        assert!(end.unwrap_err().is_unavailable());
        let (end, _) = play(LONG, |mut first, _signals| {
            first.hello();
            first.take().unwrap();
            let (path, found) = (b"zsh".to_vec(), vec![b"sh".to_vec()]);
            let failure = Failure { kind: FailureKind::ProgramMissing, errno: 2, path, found };
            first.say(&Answer::Failed(failure));
        });
        let error = end.unwrap_err();
        assert!(!error.is_unavailable() && error.code() == 127, "{error}");
    }

    #[test]
    fn a_hostile_first_process_is_bounded() {
        let short = Duration::from_millis(300);
        let (end, _) = play(short, |mut first, _signals| assert_eq!(first.take(), None));
        assert!(matches!(end, Err(StepError::Silent(_))));
        let (end, _) = play(short, |mut first, _signals| {
            first.hello();
            // It takes the step and says no more.
            while first.take().is_some() {}
        });
        assert!(matches!(end, Err(StepError::Silent(_))));
        let endless: [&[u8]; 4] =
            [&[0xff; 4096], &[0; 4096], &Answer::Started.encode(), b"\x02\x10\x27\0\0"];
        for bytes in endless {
            let (end, _) =
                play(LONG, |mut first, _signals| while first.socket.write_all(bytes).is_ok() {});
            let error = end.unwrap_err();
            assert!(matches!(error, StepError::Answer(_) | StepError::Turn(_)), "{error}");
            assert!(!error.is_unavailable());
        }
        let (end, _) = play(LONG, |mut first, _signals| {
            let _streams = first.start();
            while first.socket.write_all(&Answer::Started.encode()).is_ok() {}
        });
        assert!(matches!(end, Err(StepError::Turn("started"))));
    }
}
