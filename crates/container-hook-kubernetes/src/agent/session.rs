//! A session with the agent of a container, which outlives its streams.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use oci_hooks_files::error::chain;
use oci_hooks_init::frames::{FrameError, StepAnswer, VERSIONS};
use tokio::time::sleep;
use tracing::debug;

use super::link::{AgentLink, LinkError};

/// First and longest pause before a lost stream is reopened.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Number of streams with invalid frames after which the process at the other end is taken for
/// another program than the agent.
pub const MALFORMED_LIMIT: u32 = 3;

/// Future of a stream that is being opened.
pub type LinkFuture<'o> =
    Pin<Box<dyn Future<Output = Result<AgentLink, Box<dyn Error + Send + Sync>>> + 'o>>;

/// Opens streams to the agent of one container.
pub trait LinkOpener {
    /// Opens a stream, waiting out temporary failures. An error is final: the pod is deleted, or the
    /// container has ended.
    fn open(&self) -> LinkFuture<'_>;

    /// Returns the cluster's report about the container, for messages.
    fn describe(&self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(async { "nothing more is known".to_owned() })
    }
}

/// A session with the agent of a container.
pub struct AgentSession<'a> {
    opener: &'a dyn LinkOpener,
    link: Option<AgentLink>,
    pause: Duration,
    pauses: (Duration, Duration),
}

/// Errors that end a session with an agent.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Gone(Box<dyn Error + Send + Sync>),
    #[error(
        "the agent in the container supports protocol versions {oldest} to {newest}, expected {}: the runner's \
         container-hook and that of `runner-image` or ACTIONS_RUNNER_IMAGE must have the same version",
        VERSIONS.newest
    )]
    Version { oldest: u16, newest: u16 },
    /// Several streams began with invalid frames: the process at the other end does not follow the
    /// agent's protocol.
    #[error("another program answers in place of the agent in the container")]
    NoAgent(#[source] LinkError),
}

impl<'a> AgentSession<'a> {
    pub(crate) fn new(opener: &'a dyn LinkOpener) -> Self {
        AgentSession { opener, link: None, pause: PAUSES.0, pauses: PAUSES }
    }

    /// Returns a session that reopens lost streams at once.
    #[cfg(test)]
    pub(crate) fn without_pauses(opener: &'a dyn LinkOpener) -> Self {
        let none = (Duration::ZERO, Duration::ZERO);
        AgentSession { opener, link: None, pause: none.0, pauses: none }
    }

    /// Returns the opener of the streams.
    pub(super) fn opener(&self) -> &'a dyn LinkOpener {
        self.opener
    }

    /// Returns the open stream, or opens one and receives the agent's `Hello`.
    pub(crate) async fn link(&mut self) -> Result<&mut AgentLink, SessionError> {
        let mut malformed = 0;
        while self.link.is_none() {
            let mut link = self.opener.open().await.map_err(SessionError::Gone)?;
            match hello(&mut link).await {
                Ok(Ok(())) => self.link = Some(link),
                Ok(Err(refused)) => return Err(refused),
                Err(error) => {
                    malformed += u32::from(matches!(error, LinkError::Frame(_)));
                    if malformed >= MALFORMED_LIMIT {
                        return Err(SessionError::NoAgent(error));
                    }
                    self.handle_lost_stream(&error).await;
                }
            }
        }
        Ok(self.link.as_mut().expect("it was opened"))
    }

    /// Drops the stream, so that [`Self::link`] opens another, after a pause that grows with each stream lost
    /// in succession.
    pub(crate) async fn handle_lost_stream(&mut self, error: &LinkError) {
        debug!(error = chain(error), "lost the stream to the container");
        self.link = None;
        sleep(self.pause).await;
        self.pause = self.pauses.1.min(self.pause * 2);
    }

    /// Closes the stream, if one is open, discarding data in flight.
    pub(crate) fn close(&mut self) {
        self.link = None;
    }

    /// Resets the pause after new data got through.
    pub(crate) fn reset_pause(&mut self) {
        self.pause = self.pauses.0;
    }
}

async fn hello(link: &mut AgentLink) -> Result<Result<(), SessionError>, LinkError> {
    let (kind, payload) = link.receiver.receive().await?;
    let StepAnswer::Hello(hello) = StepAnswer::decode(kind, &payload)? else {
        return Err(FrameError::UnknownKind(kind).into());
    };
    let refused = || SessionError::Version { oldest: hello.oldest, newest: hello.newest };
    Ok(VERSIONS.common_version(hello).map(|_| ()).ok_or_else(refused))
}

/// Path of the agent's program below the root of the runner image.
pub const INSTALLED: &str = "/usr/libexec/oci-hooks/agent";
/// Path of the agent's program in containers; the job's users cannot write to it.
pub const PROGRAM: &str = "/.oci-hooks/image/usr/libexec/oci-hooks/agent";
/// Directory for the agent's socket, and for the used ids of steps.
pub const STATE: &str = "/.oci-hooks/run";
