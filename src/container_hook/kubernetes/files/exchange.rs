//! What all exchanges have in common: both directions at once, and again after a lost stream.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::error::FilesError;
use crate::container_hook::kubernetes::agent::{LinkError, Sending, Session, SessionError};
use crate::sys::fs::PathError;
use crate::sys::init::frames::FrameError;
use crate::sys::init::frames::files::FilesAnswer;

/// How often an exchange is begun again that does not get further.
const ATTEMPTS: usize = 8;
/// How often one is begun again at all: whoever pretends to get further does not do it for ever.
const MAX_ATTEMPTS: usize = 100;
/// How often an agent that is sent nothing else is told that we are here.
pub const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// The frame that says so.
pub const ALIVE: [u8; 5] = [0x8a, 0, 0, 0, 0];
const HEARTBEAT: u8 = 0x07;

/// Why an exchange ended before its end.
pub enum Stopped {
    /// The stream was lost: begun again, it goes on.
    Lost(LinkError),
    Failed(FilesError),
}

impl From<LinkError> for Stopped {
    fn from(error: LinkError) -> Self {
        match error {
            // Not what a broken stream looks like: what arrives is in order as far as it goes.
            LinkError::Frame(error) => Stopped::Failed(error.into()),
            error => Stopped::Lost(error),
        }
    }
}

impl From<SessionError> for Stopped {
    fn from(error: SessionError) -> Self {
        Stopped::Failed(error.into())
    }
}

impl From<FrameError> for Stopped {
    fn from(error: FrameError) -> Self {
        Stopped::Failed(error.into())
    }
}

impl From<PathError> for Stopped {
    fn from(error: PathError) -> Self {
        Stopped::Failed(error.into())
    }
}

impl From<FilesError> for Stopped {
    fn from(error: FilesError) -> Self {
        Stopped::Failed(error)
    }
}

/// How often an exchange was begun.
#[derive(Default)]
pub struct Attempts {
    all: usize,
    /// Since it got further last.
    in_vain: usize,
}

impl Attempts {
    /// Closes the stream after a stop; returns if the exchange is to be begun again. `got_further` says
    /// that something of it was done.
    pub async fn after(
        &mut self,
        stopped: Stopped,
        session: &mut Session<'_>,
        got_further: bool,
    ) -> Result<(), FilesError> {
        session.close();
        let error = match stopped {
            Stopped::Failed(error) => return Err(error),
            Stopped::Lost(error) => error,
        };
        if got_further {
            self.in_vain = 0;
            session.goes_on();
        }
        self.in_vain += 1;
        self.all += 1;
        if self.in_vain == ATTEMPTS || self.all == MAX_ATTEMPTS {
            return Err(FilesError::Lost { attempts: self.all, source: error });
        }
        session.lost(&error).await;
        Ok(())
    }
}

/// Runs both to their ends, or to the first error of one of them.
pub async fn both<A, B, E>(
    a: impl Future<Output = Result<A, E>>,
    b: impl Future<Output = Result<B, E>>,
) -> Result<(A, B), E> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    poll_fn(move |context| {
        if of_a.is_none()
            && let Poll::Ready(result) = a.as_mut().poll(context)
        {
            match result {
                Ok(value) => of_a = Some(value),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if of_b.is_none()
            && let Poll::Ready(result) = b.as_mut().poll(context)
        {
            match result {
                Ok(value) => of_b = Some(value),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        match (of_a.take(), of_b.take()) {
            (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
            rest => {
                (of_a, of_b) = rest;
                Poll::Pending
            }
        }
    })
    .await
}

/// Says that we are here until the exchange is over.
pub async fn stay(to: &mut Sending<'_>, over: &Notify) -> Result<(), LinkError> {
    while timeout(ALIVE_EVERY, over.notified()).await.is_err() {
        to.send(&ALIVE).await?;
    }
    Ok(())
}

/// Reads an answer; none for a heartbeat.
pub fn answer(kind: u8, payload: &[u8]) -> Result<Option<FilesAnswer>, FrameError> {
    if kind == HEARTBEAT {
        return Ok(None);
    }
    FilesAnswer::decode(kind, payload).map(Some)
}
