//! Runs a step in a container: the step is started once and outlives lost streams to its agent. Forwards its
//! output and our signals, and returns its exit status.
//!
//! The agent keeps the step's output until it is written here. A lost stream is reopened, and the output
//! requested from the first missing byte on.

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use container_hook_job::HookLog;
use oci_hooks_engine::container::{LimitHit, StepEnd, StepError, StepSignals};
use oci_hooks_files::error::chain;
use oci_hooks_init::frames::journal::{
    AttachRequest, END_RECEIVED, HEARTBEAT_SECONDS, LimitEvents, RECEIVED_BYTES, StepEvent, StepId,
};
use oci_hooks_init::frames::{ContainerStep, FailureKind, FrameError, StepAnswer, StepRequest};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::link::{AgentLink, LinkError};
use super::session::{AgentSession, MALFORMED_LIMIT, SessionError};
use super::silence;
use super::writer::OutputWriter;

/// Grace period of a step after `SIGTERM` before it is killed: the runner kills this process a second later.
const TERM_GRACE: Duration = Duration::from_millis(1500);
/// Time after `SIGTERM` at which this process ends even if the step's status is unknown.
const TERM_LIMIT: Duration = Duration::from_millis(2200);
/// Interval of the heartbeats to the agent.
const ALIVE: Duration = Duration::from_secs(HEARTBEAT_SECONDS);
/// Minimum time that the CPU limit held up a step, for it to be logged.
const MIN_THROTTLED_TIME: Duration = Duration::from_secs(5);
/// The same as a percentage of the time in which the step could have run.
const MIN_THROTTLED_PERCENT: u64 = 20;
/// Timeout for the acknowledgement of a step's end, which the agent can do without.
const FAREWELL: Duration = Duration::from_secs(1);

/// Errors of running a step through the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The step could not be started or supervised, for a reason that the agent reports.
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A stream was lost: another one can attach to the step.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Streams can be opened, but no data got through for `lost_timeout`.
    #[error("the stream to the container has been failing for {seconds} s")]
    Unsteady { seconds: u64, source: LinkError },
    /// Nothing was received from the container for `lost_timeout`.
    #[error("{container} has not answered for {seconds} s: {state}")]
    Silent { container: String, seconds: u64, state: String },
    /// Several streams had invalid frames: the process at the other end does not follow the agent's
    /// protocol.
    #[error("unexpected answer from the agent in the container")]
    Answer(#[source] LinkError),
}

impl AgentError {
    /// Returns whether the container can still be reached.
    pub fn is_reachable(&self) -> bool {
        matches!(self, AgentError::Step(_))
    }

    /// Returns the step's exit code: that of a shell for a [`StepError`], otherwise 1.
    pub fn code(&self) -> u8 {
        match self {
            AgentError::Step(error) => error.code(),
            _ => 1,
        }
    }
}

/// A step for the agent of a container.
pub struct AgentStep<'a> {
    /// Unique to this run of the step: letters, digits, `-` and `_`, at most 64.
    pub id: &'a str,
    /// Name of the container for messages.
    pub title: &'a str,
    /// Standard output and standard error.
    pub streams: [BorrowedFd<'a>; 2],
    pub log: &'a dyn HookLog,
    /// Time without data from the container after which the step fails.
    pub lost_timeout: Duration,
}

/// Runs a program as a step to its end, once, and forwards its output. Logs limits that the container reached, and
/// each silence of the container.
///
/// Signals go to all processes of the step, which is killed if it remains after `SIGTERM`. Processes that the
/// step leaves running are not killed.
///
/// # Errors
///
/// Fails if the step was not started, or if its exit status is unknown.
pub async fn run(
    session: &mut AgentSession<'_>,
    step: AgentStep<'_>,
    program: ContainerStep,
    signals: &mut dyn StepSignals,
) -> Result<StepEnd, AgentError> {
    let frame = |error| AgentError::Step(StepError::Request(error));
    let id = StepId::new(step.id).ok_or_else(|| frame(FrameError::Invalid("id")))?;
    let begin = AttachRequest { id: id.clone(), from: 0, step: Some(program) };
    let begin = StepRequest::Attach(Box::new(begin)).encode().map_err(frame)?;
    let writer = OutputWriter::new(step.streams).map_err(StepError::Streams)?;
    let heard = Cell::new(Instant::now());
    let mut run = StepRun {
        id,
        begin: Some(begin),
        start_requested: false,
        position: 0,
        received: 0,
        end: None,
        limits: LimitEvents::default(),
        writer,
        signals: ForwardedSignals::new(signals).map_err(StepError::Streams)?,
        kill_at: None,
        drops_output: false,
        give_up_at: None,
        lost_since: None,
        lost_timeout: step.lost_timeout,
        heard: &heard,
        malformed: 0,
    };
    let opener = session.opener();
    let end = tokio::select! {
        end = run.finish(session) => end,
        error = silence::watch(opener, &step, &heard) => Err(error),
    };
    report_limits(&step, run.limits);
    end
}

/// Logs the limits that a step's container reached.
fn report_limits(step: &AgentStep<'_>, limits: LimitEvents) {
    let LimitEvents { memory_kills, cpu_usec, throttled_usec, is_disk_full } = limits;
    let warn = |hit: LimitHit| step.log.warning(&format!("{} {hit}", step.title));
    if memory_kills > 0 {
        warn(LimitHit::Memory(memory_kills));
    }
    if is_disk_full {
        warn(LimitHit::Disk);
    }
    let runnable_usec = cpu_usec.saturating_add(throttled_usec);
    let percent = throttled_usec.saturating_mul(100) / runnable_usec.max(1);
    let throttled = Duration::from_micros(throttled_usec);
    if throttled >= MIN_THROTTLED_TIME && percent >= MIN_THROTTLED_PERCENT {
        // Not a warning: a throttled step need not fail.
        step.log.line(&format!("{} {}", step.title, LimitHit::Cpus { percent }));
    }
}

/// State of a step, as seen from this process.
struct StepRun<'s> {
    id: StepId,
    /// Request that starts the step, until the step has started.
    begin: Option<Vec<u8>>,
    /// If set, the start was requested, and the step may run.
    start_requested: bool,
    /// Number of bytes of output received from the agent.
    position: u64,
    /// Number of bytes of output acknowledged on the current stream.
    received: u64,
    /// The step's final answer, once received.
    end: Option<StepAnswer>,
    /// Limits that the step's container reached; set with the final answer.
    limits: LimitEvents,
    writer: OutputWriter,
    signals: ForwardedSignals<'s>,
    kill_at: Option<Instant>,
    give_up_at: Option<Instant>,
    /// If set, a signal arrived after the step's end, so the rest of the output is dropped.
    drops_output: bool,
    /// Time at which a stream was lost; `None` once data gets through again.
    lost_since: Option<Instant>,
    /// Maximum time since `lost_since`; then the step fails.
    lost_timeout: Duration,
    /// Time of the last data from the container; the current time while no data is expected.
    heard: &'s Cell<Instant>,
    malformed: u32,
}

impl StepRun<'_> {
    async fn finish(&mut self, session: &mut AgentSession<'_>) -> Result<StepEnd, AgentError> {
        loop {
            let link = self.open(session).await?;
            let error = match self.exchange(link).await {
                Err(AgentError::Link(error)) => error,
                end => return end,
            };
            debug!(id = self.id.as_str(), error = chain(&error), "attaching to the step again");
            let goes_on = self.lost_since.is_none();
            let since = *self.lost_since.get_or_insert_with(Instant::now);
            self.malformed += u32::from(matches!(error, LinkError::Frame(_)));
            if self.malformed >= MALFORMED_LIMIT {
                return Err(AgentError::Answer(error));
            }
            if since.elapsed() > self.lost_timeout {
                let seconds = since.elapsed().as_secs();
                return Err(AgentError::Unsteady { seconds, source: error });
            }
            if goes_on {
                session.reset_pause();
            }
            // A signal ends the pause before the next attempt.
            tokio::select! {
                () = session.handle_lost_stream(&error) => {}
                () = self.signals.wait_for_signals() => {}
            }
        }
    }

    /// Returns the open stream, or opens one, which may take long. Signals that arrive meanwhile
    /// are forwarded on the new stream.
    async fn open<'l>(
        &mut self,
        session: &'l mut AgentSession<'_>,
    ) -> Result<&'l mut AgentLink, AgentError> {
        let opened = session.link();
        tokio::pin!(opened);
        loop {
            self.check_time()?;
            tokio::select! {
                link = &mut opened => return Ok(link?),
                () = self.signals.wait_for_signals() => drop(self.take_signals()?),
                () = sleep_until_deadline(self.give_up_at) => {}
            }
        }
    }

    /// Follows the step on one stream.
    async fn exchange(&mut self, link: &mut AgentLink) -> Result<StepEnd, AgentError> {
        self.attach(link).await?;
        let mut alive_at = Instant::now() + ALIVE;
        loop {
            if let Some(end) = self.check_end().transpose() {
                acknowledge_end(link).await;
                return end;
            }
            self.acknowledge(link).await?;
            let receives = self.end.is_none() && self.writer.has_room();
            if !receives {
                self.heard.set(Instant::now());
            }
            tokio::select! {
                () = self.signals.wait_for_signals() => {
                    for request in self.take_signals()? {
                        self.send(link, &request).await?;
                    }
                }
                () = sleep_until_deadline(self.kill_at) => {
                    debug!("killing the step");
                    self.kill_at = None;
                    let kill = Signal::KILL.as_raw();
                    self.signals.taken.push(kill);
                    self.send(link, &encode_request(&StepRequest::Signal(kill))).await?;
                }
                () = sleep_until_deadline(self.give_up_at) => self.check_time()?,
                () = sleep_until(alive_at) => {
                    alive_at = Instant::now() + ALIVE;
                    self.send(link, &encode_request(&StepRequest::Alive)).await?;
                }
                () = self.writer.wait_for_progress() => {}
                frame = link.receiver.receive(), if receives => {
                    let (kind, payload) = frame?;
                    self.heard.set(Instant::now());
                    let event = StepEvent::decode(kind, &payload).map_err(LinkError::Frame)?;
                    self.take(event)?;
                }
            }
        }
    }

    /// Sends a frame. After the step's end, a lost stream is no error, because all output has been
    /// received.
    async fn send(&self, link: &mut AgentLink, frame: &[u8]) -> Result<(), LinkError> {
        match link.sender.send(frame).await {
            Err(error) if self.end.is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// Requests the start of the step. Once the step has started, requests its output from the
    /// first missing byte on.
    async fn attach(&mut self, link: &mut AgentLink) -> Result<(), LinkError> {
        match &self.begin {
            Some(begin) => {
                self.start_requested = true;
                link.sender.send(begin).await?;
            }
            None => {
                let attach = AttachRequest { id: self.id.clone(), from: self.position, step: None };
                link.sender.send(&encode_request(&StepRequest::Attach(Box::new(attach)))).await?;
            }
        }
        // Signals and acknowledgements sent before may have been lost with their stream.
        self.received = 0;
        for signal in self.signals.taken.clone() {
            link.sender.send(&encode_request(&StepRequest::Signal(signal))).await?;
        }
        Ok(())
    }

    /// Takes the pending signals and returns the frames that forward them.
    fn take_signals(&mut self) -> Result<Vec<Vec<u8>>, AgentError> {
        let mut frames = Vec::new();
        for signal in self.signals.take() {
            if !self.start_requested {
                return Err(StepError::Interrupted(signal).into());
            }
            self.drops_output |= self.end.is_some();
            debug!(signal, "forwarding a signal to the step");
            frames.push(encode_request(&StepRequest::Signal(signal)));
            if signal == Signal::TERM.as_raw() {
                let now = Instant::now();
                self.kill_at.get_or_insert(now + TERM_GRACE);
                self.give_up_at.get_or_insert(now + TERM_LIMIT);
            }
        }
        Ok(frames)
    }

    fn check_time(&self) -> Result<(), AgentError> {
        match self.give_up_at {
            Some(at) if Instant::now() >= at => {
                Err(StepError::Interrupted(Signal::TERM.as_raw()).into())
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, event: StepEvent) -> Result<(), AgentError> {
        let invalid = || AgentError::Answer(FrameError::Invalid("offset").into());
        let mut is_news = self.begin.is_some();
        match event {
            // The agent has nothing else to send: a silent step may lose its stream from time to time.
            StepEvent::Heartbeat => {
                self.lost_since = None;
                return Ok(());
            }
            StepEvent::Started => {}
            StepEvent::Output { stream, offset, bytes } => {
                // Output may be repeated in part.
                let known = usize::try_from(self.position.saturating_sub(offset));
                let new = bytes.get(known.unwrap_or(usize::MAX)..).unwrap_or_default();
                if offset > self.position {
                    return Err(invalid());
                }
                is_news |= !new.is_empty();
                if !new.is_empty() {
                    self.position += new.len() as u64;
                    self.writer.write(stream, new.to_vec());
                }
            }
            // A step that was begun does not end so: the container had no process for its new stream, and the
            // step goes on.
            StepEvent::Ended { end: StepAnswer::Failed(failure), .. }
                if self.begin.is_none() && failure.kind == FailureKind::Process =>
            {
                return Err(LinkError::Closed.into());
            }
            StepEvent::Ended { offset, limits, end } => {
                is_news = true;
                // The output of a failed step may be incomplete.
                if !matches!(end, StepAnswer::Failed(_)) && offset != self.position {
                    return Err(invalid());
                }
                debug!(?end, "the step ended");
                (self.end, self.limits) = (Some(end), limits);
            }
        }
        self.begin = None;
        if is_news {
            self.lost_since = None;
            self.malformed = 0;
        }
        Ok(())
    }

    /// Returns the end of the step once all of its output has been written, or without waiting for the output if
    /// `drops_output` is set; `None` before.
    fn check_end(&mut self) -> Result<Option<StepEnd>, AgentError> {
        let written =
            self.writer.written_bytes().map_err(|error| StepError::Streams(error.into()))?;
        let Some(end) = &self.end else { return Ok(None) };
        if written < self.position && !self.drops_output {
            return Ok(None);
        }
        match end {
            StepAnswer::Exited(code) => Ok(Some(StepEnd::Exited(*code))),
            StepAnswer::Signalled(signal) => Ok(Some(StepEnd::Signalled(*signal))),
            StepAnswer::Failed(failure) => Err(StepError::Failed(failure.clone()).into()),
            StepAnswer::Hello(_) | StepAnswer::Started => Err(StepError::OutOfTurn("hello").into()),
        }
    }

    /// Acknowledges the written output, once at least `RECEIVED_BYTES` of it are not acknowledged.
    async fn acknowledge(&mut self, link: &mut AgentLink) -> Result<(), AgentError> {
        let written =
            self.writer.written_bytes().map_err(|error| StepError::Streams(error.into()))?;
        if written - self.received >= RECEIVED_BYTES {
            self.received = written;
            self.send(link, &encode_request(&StepRequest::Received(written))).await?;
        }
        Ok(())
    }
}

/// Acknowledges the end of a step, so that the agent can discard it. Errors are ignored.
async fn acknowledge_end(link: &mut AgentLink) {
    let received = encode_request(&StepRequest::Received(END_RECEIVED));
    if let Ok(Err(error)) = timeout(FAREWELL, link.sender.send(&received)).await {
        debug!(error = chain(&error), "cannot acknowledge the end of the step to the agent");
    }
}

/// Encodes a request whose content always fits in a frame.
fn encode_request(request: &StepRequest) -> Vec<u8> {
    request.encode().unwrap_or_default()
}

async fn sleep_until_deadline(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Signals to this process, to be forwarded to the step.
struct ForwardedSignals<'s> {
    from: &'s mut dyn StepSignals,
    descriptor: AsyncFd<OwnedFd>,
    /// The kinds of signals forwarded so far, which are sent again on a new stream.
    taken: Vec<i32>,
}

impl<'s> ForwardedSignals<'s> {
    fn new(from: &'s mut dyn StepSignals) -> io::Result<Self> {
        let descriptor = from.descriptor().try_clone_to_owned()?;
        #[expect(deprecated, reason = "an owned descriptor is the same one to its end")]
        let descriptor = AsyncFd::try_with_interest(descriptor, Interest::READABLE)?;
        Ok(ForwardedSignals { from, descriptor, taken: Vec::new() })
    }

    /// Waits for signals; [`Self::take`] returns them.
    async fn wait_for_signals(&self) {
        if self.descriptor.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn take(&mut self) -> Vec<i32> {
        // Readiness is cleared before taking: a signal that arrives afterwards sets it again.
        if let Some(Ok(mut guard)) =
            futures_util::FutureExt::now_or_never(self.descriptor.readable())
        {
            guard.clear_ready();
        }
        let came = self.from.take();
        for signal in &came {
            if !self.taken.contains(signal) {
                self.taken.push(*signal);
            }
        }
        came
    }
}

#[cfg(test)]
mod tests;
