//! The agent of a container, whatever becomes of the streams to it.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::link::{Link, LinkError};
use crate::sys::error::chain;
use crate::sys::init::frames::{Answer, FrameError, VERSIONS};

/// The first and the longest pause before a lost stream is opened again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How many streams may be opened on which comes what is no answer.
pub const MALFORMED_LIMIT: u32 = 3;

/// A stream that is being opened.
type Opening<'o> = Pin<Box<dyn Future<Output = Result<Link, Box<dyn Error + Send + Sync>>> + 'o>>;

/// What opens streams to the agent of one container.
pub trait Opener {
    /// Opens a stream. An error says that there will never be one again, in words: the pod is gone, or
    /// the container has ended. What may pass, it waits for itself.
    fn open(&self) -> Opening<'_>;
}

/// The agent of a container.
pub struct Session<'a> {
    opener: &'a dyn Opener,
    link: Option<Link>,
    pause: Duration,
    pauses: (Duration, Duration),
}

/// Why the agent of a container cannot be asked any more.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Gone(Box<dyn Error + Send + Sync>),
    #[error(
        "the agent in the container speaks versions {oldest} to {newest} of its protocol, not {}",
        VERSIONS.newest
    )]
    Version { oldest: u16, newest: u16 },
    /// Whatever answers is no agent of ours.
    #[error("no agent in the container")]
    NoAgent(#[source] LinkError),
}

impl<'a> Session<'a> {
    pub(in crate::container_hook::kubernetes) fn new(opener: &'a dyn Opener) -> Self {
        Session { opener, link: None, pause: PAUSES.0, pauses: PAUSES }
    }

    /// Returns a session that opens lost streams again at once.
    #[cfg(test)]
    pub(in crate::container_hook::kubernetes) fn without_pauses(opener: &'a dyn Opener) -> Self {
        let none = (Duration::ZERO, Duration::ZERO);
        Session { opener, link: None, pause: none.0, pauses: none }
    }

    /// Returns the stream that is open, or a new one, whose agent has said hello.
    pub(in crate::container_hook::kubernetes) async fn link(
        &mut self,
    ) -> Result<&mut Link, SessionError> {
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
                    self.lost(&error).await;
                }
            }
        }
        Ok(self.link.as_mut().expect("it was opened"))
    }

    /// Forgets the stream, after which [`Self::link`] opens another; pauses, the longer the more of them
    /// were lost one after the other.
    pub(in crate::container_hook::kubernetes) async fn lost(&mut self, error: &LinkError) {
        debug!(error = chain(error), "lost the stream to the container");
        self.link = None;
        sleep(self.pause).await;
        self.pause = self.pauses.1.min(self.pause * 2);
    }

    /// Closes the stream, if one is open: what is still on its way is of no interest.
    pub(in crate::container_hook::kubernetes) fn close(&mut self) {
        self.link = None;
    }

    /// Notes that something got through, and was no repetition.
    pub(in crate::container_hook::kubernetes) fn goes_on(&mut self) {
        self.pause = self.pauses.0;
    }
}

async fn hello(link: &mut Link) -> Result<Result<(), SessionError>, LinkError> {
    let (kind, payload) = link.receive().await?;
    let Answer::Hello(hello) = Answer::decode(kind, &payload)? else {
        return Err(FrameError::UnknownKind(kind).into());
    };
    let refused = || SessionError::Version { oldest: hello.oldest, newest: hello.newest };
    Ok(VERSIONS.common(hello).map(|_| ()).ok_or_else(refused))
}

/// The program; nobody there can write to it.
pub const PROGRAM: &str = "/.oci-hooks/bin/agent";
/// Its directory for the socket, and for what steps write.
pub const STATE: &str = "/.oci-hooks/run";
