//! Common parts of all exchanges: keepalives, and retries after a lost stream.

use std::time::Duration;

use oci_hooks_files::fs::PathError;
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::FilesFrame;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::error::FilesError;
use crate::agent::{AgentSession, FrameSender, LinkError, SessionError};

/// Maximum number of successive attempts without progress.
const ATTEMPTS: usize = 8;
/// Maximum number of attempts in total: a hostile agent may pretend progress.
const MAX_ATTEMPTS: usize = 100;
/// Interval of keepalives to an agent that is sent nothing else.
pub const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// The keepalive frame.
pub const ALIVE: [u8; 5] = [0x8a, 0, 0, 0, 0];
const HEARTBEAT: u8 = 0x07;

/// Reasons to interrupt an exchange.
pub enum ExchangeStop {
    /// The stream was lost: a new attempt may succeed.
    Lost(LinkError),
    Failed(FilesError),
}

impl From<LinkError> for ExchangeStop {
    fn from(error: LinkError) -> Self {
        match error {
            // Not a lost stream, whose data is valid up to its end.
            LinkError::Frame(error) => ExchangeStop::Failed(error.into()),
            error => ExchangeStop::Lost(error),
        }
    }
}

impl From<SessionError> for ExchangeStop {
    fn from(error: SessionError) -> Self {
        ExchangeStop::Failed(error.into())
    }
}

impl From<FrameError> for ExchangeStop {
    fn from(error: FrameError) -> Self {
        ExchangeStop::Failed(error.into())
    }
}

impl From<PathError> for ExchangeStop {
    fn from(error: PathError) -> Self {
        ExchangeStop::Failed(error.into())
    }
}

impl From<FilesError> for ExchangeStop {
    fn from(error: FilesError) -> Self {
        ExchangeStop::Failed(error)
    }
}

/// Count of an exchange's attempts.
#[derive(Default)]
pub struct ExchangeAttempts {
    all: usize,
    /// Attempts since the last progress.
    in_vain: usize,
}

impl ExchangeAttempts {
    /// Closes the stream after a stop; returns `Ok` if the exchange is to be retried. `got_further` is true if
    /// the attempt made progress.
    pub async fn handle_stop(
        &mut self,
        stopped: ExchangeStop,
        session: &mut AgentSession<'_>,
        got_further: bool,
    ) -> Result<(), FilesError> {
        session.close();
        let error = match stopped {
            ExchangeStop::Failed(error) => return Err(error),
            ExchangeStop::Lost(error) => error,
        };
        if got_further {
            self.in_vain = 0;
            session.reset_pause();
        }
        self.in_vain += 1;
        self.all += 1;
        if self.in_vain == ATTEMPTS || self.all == MAX_ATTEMPTS {
            return Err(FilesError::Lost { attempts: self.all, source: error });
        }
        session.handle_lost_stream(&error).await;
        Ok(())
    }
}

/// Sends keepalives until the exchange is over.
pub async fn send_keepalives(to: &mut FrameSender<'_>, over: &Notify) -> Result<(), LinkError> {
    while timeout(ALIVE_EVERY, over.notified()).await.is_err() {
        to.send(&ALIVE).await?;
    }
    Ok(())
}

/// Decodes an answer; `None` for a heartbeat.
pub fn answer(kind: u8, payload: &[u8]) -> Result<Option<FilesFrame>, FrameError> {
    if kind == HEARTBEAT {
        return Ok(None);
    }
    FilesFrame::decode(kind, payload).map(Some)
}
