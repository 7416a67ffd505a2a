//! A step in a container: started once, whatever becomes of the streams to its agent, with all that it
//! writes, the signals that we get, and how it ended.
//!
//! The agent keeps what the step writes until it was written here. A lost stream is opened again, and the
//! step asked for from the first byte on that did not come.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::link::{Link, LinkError};
use super::session::{MALFORMED_LIMIT, Session, SessionError};
use super::writer::Writer;
use crate::container::{StepEnd, StepError, StepSignals};
use crate::sys::error::chain;
use crate::sys::init::frames::journal::{
    Attach, HEARTBEAT_SECONDS, JournalRequest, StepEvent, StepId,
};
use crate::sys::init::frames::{Answer, FrameError, Step};

/// How long a step may take to end after `SIGTERM` before it is killed: the runner kills us a second
/// later.
const TERM_GRACE: Duration = Duration::from_millis(1500);
/// When we end after `SIGTERM` whether or not we know how the step did.
const TERM_LIMIT: Duration = Duration::from_millis(2200);
/// How long streams may be lost one after the other, without anything getting through.
const LOST_LIMIT: Duration = Duration::from_secs(300);
/// How often the agent hears that we are there.
const ALIVE: Duration = Duration::from_secs(HEARTBEAT_SECONDS);
/// How much is written before the agent may forget it, if there is more.
const RECEIVED_BYTES: u64 = 1 << 20;
/// How long the agent is given to hear that we know how the step ended; it finds out without.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why it is not known how a step ended, or why there was none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The step could not be started, or not to its end, for a reason that the agent gives.
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Streams can be opened, and nothing gets through.
    #[error("the stream to the container is lost again and again for {} minutes", LOST_LIMIT.as_secs() / 60)]
    Unsteady(#[source] LinkError),
    /// Whatever answers is no agent of ours.
    #[error("the agent in the container answers what it must not")]
    Answer(#[source] LinkError),
    /// The job has changed what the agent kept, or the agent.
    #[error("{missing} bytes are missing of what the step wrote")]
    Missing { missing: u64 },
}

impl AgentError {
    /// Returns the exit code of the step: what a shell would have for a program that it cannot run.
    pub fn code(&self) -> u8 {
        match self {
            AgentError::Step(error) => error.code(),
            _ => 1,
        }
    }
}

/// Has a step run to its end, once, and passes on what it writes. The id is of this run of the step alone:
/// letters, digits, `-` and `_`, at most 64.
///
/// Signals go to all processes of the step, which is killed if it stays after `SIGTERM`. What it leaves
/// running lives on.
///
/// # Errors
///
/// Fails if the step was not started, or if it is not known how it ended.
pub async fn run(
    session: &mut Session<'_>,
    id: &str,
    step: Step,
    signals: &mut dyn StepSignals,
    streams: [BorrowedFd<'_>; 2],
) -> Result<StepEnd, AgentError> {
    let frame = |error| AgentError::Step(StepError::Request(error));
    let id = StepId::new(id).ok_or_else(|| frame(FrameError::Invalid("id")))?;
    let begin = Attach { id: id.clone(), from: 0, step: Some(step) };
    let begin = JournalRequest::Attach(Box::new(begin)).encode().map_err(frame)?;
    let writer = Writer::new(streams).map_err(StepError::Streams)?;
    let run = Run {
        id,
        begin: Some(begin),
        is_asked: false,
        position: 0,
        received: 0,
        end: None,
        writer,
        signals: Signals::new(signals).map_err(StepError::Streams)?,
        kill_at: None,
        is_killed: false,
        is_told: false,
        give_up_at: None,
        lost_since: None,
        malformed: 0,
    };
    run.finish(session).await
}

/// A step, as far as we know of it.
struct Run<'s> {
    id: StepId,
    /// The request that starts the step, until it has been.
    begin: Option<Vec<u8>>,
    /// Whether that was sent, and the step may run.
    is_asked: bool,
    /// What came of its output.
    position: u64,
    /// What the agent was told to have come.
    received: u64,
    /// How it ended, once that came.
    end: Option<Answer>,
    writer: Writer,
    signals: Signals<'s>,
    kill_at: Option<Instant>,
    is_killed: bool,
    give_up_at: Option<Instant>,
    /// Whether a signal came after the end: nobody waits for the rest.
    is_told: bool,
    /// Since when streams are lost without anything getting through.
    lost_since: Option<Instant>,
    malformed: u32,
}

/// Why a stream is left.
enum Leave {
    Lost(LinkError),
    Over(Result<StepEnd, AgentError>),
}

impl From<LinkError> for Leave {
    fn from(error: LinkError) -> Self {
        Leave::Lost(error)
    }
}

impl From<AgentError> for Leave {
    fn from(error: AgentError) -> Self {
        Leave::Over(Err(error))
    }
}

impl Run<'_> {
    async fn finish(mut self, session: &mut Session<'_>) -> Result<StepEnd, AgentError> {
        loop {
            let link = self.open(session).await?;
            let error = match self.follow(link).await {
                Leave::Over(end) => return end,
                Leave::Lost(error) => error,
            };
            debug!(id = self.id.as_str(), error = chain(&error), "the step is asked for again");
            let goes_on = self.lost_since.is_none();
            let since = *self.lost_since.get_or_insert_with(Instant::now);
            self.malformed += u32::from(matches!(error, LinkError::Frame(_)));
            if self.malformed >= MALFORMED_LIMIT {
                return Err(AgentError::Answer(error));
            }
            if since.elapsed() > LOST_LIMIT {
                return Err(AgentError::Unsteady(error));
            }
            if goes_on {
                session.goes_on();
            }
            // Whoever is told to end does not wait for the next attempt.
            tokio::select! {
                () = session.lost(&error) => {}
                () = self.signals.come() => {}
            }
        }
    }

    /// Returns a stream, which may take long: signals that come meanwhile are kept for it.
    async fn open<'l>(&mut self, session: &'l mut Session<'_>) -> Result<&'l mut Link, AgentError> {
        let opened = session.link();
        tokio::pin!(opened);
        loop {
            self.check_time()?;
            tokio::select! {
                link = &mut opened => return Ok(link?),
                () = self.signals.come() => drop(self.take_signals()?),
                () = until(self.give_up_at) => {}
            }
        }
    }

    /// Follows the step on one stream.
    async fn follow(&mut self, link: &mut Link) -> Leave {
        match self.exchange(link).await {
            Ok(end) => Leave::Over(Ok(end)),
            Err(leave) => leave,
        }
    }

    async fn exchange(&mut self, link: &mut Link) -> Result<StepEnd, Leave> {
        self.attach(link).await?;
        let mut alive_at = Instant::now() + ALIVE;
        loop {
            if let Some(end) = self.over()? {
                self.part(link).await;
                return Ok(end);
            }
            let receives = self.end.is_none() && self.writer.has_room();
            tokio::select! {
                () = self.signals.come() => {
                    for request in self.take_signals()? {
                        link.send(&request).await?;
                    }
                }
                () = until(self.kill_at) => {
                    debug!("kill the step");
                    self.kill_at = None;
                    self.is_killed = true;
                    link.send(&encoded(&JournalRequest::Kill)).await?;
                }
                () = until(self.give_up_at) => self.check_time()?,
                () = sleep_until(alive_at) => {
                    alive_at = Instant::now() + ALIVE;
                    link.send(&encoded(&JournalRequest::Alive)).await?;
                }
                () = self.writer.goes_on() => self.acknowledge(link).await?,
                frame = link.receive(), if receives => {
                    let (kind, payload) = frame?;
                    let event = StepEvent::decode(kind, &payload).map_err(LinkError::Frame)?;
                    self.take(event)?;
                }
            }
        }
    }

    /// Asks for the step, and for what has not come of it.
    async fn attach(&mut self, link: &mut Link) -> Result<(), Leave> {
        match &self.begin {
            Some(begin) => {
                self.is_asked = true;
                link.send(begin).await?;
            }
            None => {
                let attach = Attach { id: self.id.clone(), from: self.position, step: None };
                link.send(&encoded(&JournalRequest::Attach(Box::new(attach)))).await?;
            }
        }
        // Those that were sent before may be lost with their stream.
        for signal in self.signals.taken.clone() {
            link.send(&encoded(&JournalRequest::Signal(signal))).await?;
        }
        if self.is_killed {
            link.send(&encoded(&JournalRequest::Kill)).await?;
        }
        Ok(())
    }

    /// Takes the signals that came; returns the frames that pass them on.
    fn take_signals(&mut self) -> Result<Vec<Vec<u8>>, AgentError> {
        let mut frames = Vec::new();
        for signal in self.signals.take() {
            if !self.is_asked {
                return Err(StepError::Interrupted(signal).into());
            }
            self.is_told |= self.end.is_some();
            debug!(signal, "pass a signal on to the step");
            frames.push(encoded(&JournalRequest::Signal(signal)));
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

    fn take(&mut self, event: StepEvent) -> Result<(), Leave> {
        let mut is_news = self.begin.is_some();
        match event {
            StepEvent::Heartbeat => return Ok(()),
            StepEvent::Started => {}
            StepEvent::Output { stream, offset, bytes } => {
                // What came before may come again, in part.
                let known = usize::try_from(self.position.saturating_sub(offset));
                let new = bytes.get(known.unwrap_or(usize::MAX)..).unwrap_or_default();
                if offset > self.position {
                    return Err(self.missing(offset).into());
                }
                is_news |= !new.is_empty();
                if !new.is_empty() {
                    self.position += new.len() as u64;
                    self.writer.write(stream, new.to_vec());
                }
            }
            StepEvent::Ended { offset, end } => {
                is_news = true;
                // Of what failed, no more may be known.
                if !matches!(end, Answer::Failed(_)) && offset != self.position {
                    return Err(self.missing(offset).into());
                }
                debug!(?end, "the step ended");
                self.end = Some(end);
            }
        }
        self.begin = None;
        if is_news {
            self.lost_since = None;
            self.malformed = 0;
        }
        Ok(())
    }

    /// Says what comes of an offset that is not ours.
    fn missing(&self, offset: u64) -> AgentError {
        match offset.checked_sub(self.position) {
            Some(missing) => AgentError::Missing { missing },
            None => AgentError::Answer(FrameError::Invalid("offset").into()),
        }
    }

    /// Returns how the step ended, once all of its output has been written, or nobody waits for that.
    fn over(&mut self) -> Result<Option<StepEnd>, AgentError> {
        let written = self.writer.written().map_err(|error| StepError::Streams(error.into()))?;
        let Some(end) = &self.end else { return Ok(None) };
        if written < self.position && !self.is_told {
            return Ok(None);
        }
        match end {
            Answer::Exited(code) => Ok(Some(StepEnd::Exited(*code))),
            Answer::Signalled(signal) => Ok(Some(StepEnd::Signalled(*signal))),
            Answer::Failed(failure) => Err(StepError::Failed(failure.clone()).into()),
            Answer::Hello(_) | Answer::Started => Err(StepError::Turn("hello").into()),
        }
    }

    /// Tells the agent what has been written, if that is worth it.
    async fn acknowledge(&mut self, link: &mut Link) -> Result<(), Leave> {
        let written = self.writer.written().map_err(|error| StepError::Streams(error.into()));
        let written = written.map_err(AgentError::from)?;
        if written - self.received >= RECEIVED_BYTES {
            self.received = written;
            link.send(&encoded(&JournalRequest::Received(written))).await?;
        }
        Ok(())
    }

    /// Tells the agent that we know all, and that nothing has to be kept any more.
    async fn part(&self, link: &mut Link) {
        let received = encoded(&JournalRequest::Received(self.position));
        if let Ok(Err(error)) = timeout(FAREWELL, link.send(&received)).await {
            debug!(error = chain(&error), "the agent is not told that the step's end is known");
        }
    }
}

/// Returns the frame of a request that has nothing in it that could not be in one.
fn encoded(request: &JournalRequest) -> Vec<u8> {
    request.encode().unwrap_or_default()
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Signals that this process gets, for the step instead.
struct Signals<'s> {
    from: &'s mut dyn StepSignals,
    descriptor: AsyncFd<OwnedFd>,
    /// Those that came.
    taken: Vec<i32>,
}

impl<'s> Signals<'s> {
    fn new(from: &'s mut dyn StepSignals) -> io::Result<Self> {
        let descriptor = from.descriptor().try_clone_to_owned()?;
        #[expect(deprecated, reason = "an owned descriptor is the same one to its end")]
        let descriptor = AsyncFd::try_with_interest(descriptor, Interest::READABLE)?;
        Ok(Signals { from, descriptor, taken: Vec::new() })
    }

    /// Waits until there are some; they are to be [taken](Self::take) then.
    async fn come(&self) {
        if self.descriptor.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn take(&mut self) -> Vec<i32> {
        // Before they are taken: what comes after them makes it readable again.
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
