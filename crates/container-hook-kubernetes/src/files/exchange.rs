//! Common parts of all exchanges: keepalives, answers, and retries after a lost stream.

use std::time::Duration;

use oci_hooks_init::frames::files::FilesFrame;
use tokio::time::sleep;

use super::error::FilesError;
use crate::agent::{AgentSession, FrameReceiver, FrameSender, LinkError};

/// Maximum number of successive attempts without progress.
const ATTEMPTS: usize = 8;
/// Maximum number of attempts in total: a hostile agent may pretend progress.
const MAX_ATTEMPTS: usize = 100;
/// Interval of keepalives to an agent that is sent nothing else.
pub const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// The keepalive frame.
pub const ALIVE: [u8; 5] = [0x8a, 0, 0, 0, 0];
const HEARTBEAT: u8 = 0x07;

/// Count of an exchange's attempts.
#[derive(Default)]
pub struct ExchangeAttempts {
    all: usize,
    /// Number of attempts since the last progress.
    in_vain: usize,
}

impl ExchangeAttempts {
    /// Closes the stream after an error; returns `Ok` if the exchange is to be retried. `got_further` is true if
    /// the attempt made progress.
    pub async fn handle_error(
        &mut self,
        error: FilesError,
        session: &mut AgentSession<'_>,
        got_further: bool,
    ) -> Result<(), FilesError> {
        session.close();
        let error = match error {
            // Not a lost stream, whose data is valid up to its end.
            FilesError::Link(LinkError::Frame(error)) => return Err(error.into()),
            FilesError::Link(error) => error,
            error => return Err(error),
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

/// Sends keepalives, until the future is dropped because the exchange is over.
pub async fn send_keepalives<T>(to: &mut FrameSender) -> Result<T, FilesError> {
    loop {
        sleep(ALIVE_EVERY).await;
        to.send(&ALIVE).await?;
    }
}

/// Returns the agent's next answer, skipping heartbeats.
pub async fn receive_answer(from: &mut FrameReceiver) -> Result<FilesFrame, FilesError> {
    loop {
        let (kind, payload) = from.receive().await?;
        if kind != HEARTBEAT {
            return Ok(FilesFrame::decode(kind, &payload)?);
        }
    }
}
