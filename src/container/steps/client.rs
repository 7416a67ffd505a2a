//! The host's end of a step: a request, signals, what is written, and how it ended.
//!
//! One thread waits for all of it. What the other end says is a hostile job's: it is bounded, has to
//! come in turn and in time, and nothing but how the step ended is believed.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use tracing::debug;

use super::error::StepError;
use super::send::Outgoing;
use super::socket::StepSocket;
use super::streams::{Stream, pipes};
use crate::sys::init::drain::Drain;
use crate::sys::init::frames::{
    Answer, DEAD_WITHIN_SECONDS, Failure, Frames, MAX_ANSWER_BYTES, Request, Step, VERSIONS,
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

#[cfg(test)]
mod tests;
