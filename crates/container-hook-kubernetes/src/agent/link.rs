//! One stream of frames to the agent of a container.
//!
//! API servers before Kubernetes 1.30 cannot end a stream's input, so every frame has a length.

use std::io;
use std::time::Duration;

use oci_hooks_init::frames::journal::MAX_EVENT_BYTES;
use oci_hooks_init::frames::{FrameBuffer, FrameError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum silence of an agent: it sends a heartbeat every 5 seconds.
const SILENCE: Duration = Duration::from_secs(20);
const READ_AT_ONCE: usize = 64 << 10;

/// A stream to an agent, whose halves can be used at the same time.
pub struct AgentLink {
    pub sender: FrameSender,
    pub receiver: FrameReceiver,
}

/// Sending half of an [`AgentLink`].
pub struct FrameSender {
    input: Box<dyn AsyncWrite + Send + Unpin>,
}

/// Receiving half of an [`AgentLink`].
pub struct FrameReceiver {
    output: Box<dyn AsyncRead + Send + Unpin>,
    frames: FrameBuffer,
    buffer: Vec<u8>,
    /// Time of the last received data.
    heard: Instant,
}

/// Errors of a stream, which make it unusable.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the stream to the container ended")]
    Closed,
    #[error("the stream to the container broke")]
    Broken(#[from] io::Error),
    #[error("the container sent nothing for {} seconds", SILENCE.as_secs())]
    Silent,
    /// A frame is invalid: the process at the other end does not follow the agent's protocol.
    #[error("invalid answer from the agent in the container")]
    Frame(#[from] FrameError),
}

impl AgentLink {
    pub(crate) fn new(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
    ) -> Self {
        let receiver = FrameReceiver {
            output: Box::new(output),
            frames: FrameBuffer::new(MAX_EVENT_BYTES),
            buffer: vec![0; READ_AT_ONCE],
            heard: Instant::now(),
        };
        AgentLink { sender: FrameSender { input: Box::new(input) }, receiver }
    }
}

impl FrameSender {
    /// Sends whole frames.
    pub async fn send(&mut self, frames: &[u8]) -> Result<(), LinkError> {
        let sent = async {
            self.input.write_all(frames).await?;
            self.input.flush().await
        };
        Ok(timeout(SILENCE, sent).await.map_err(|_| LinkError::Silent)??)
    }
}

impl FrameReceiver {
    /// Returns the kind and the payload of the next frame. Cancel-safe: no data is lost if the future is
    /// dropped.
    pub async fn receive(&mut self) -> Result<(u8, Vec<u8>), LinkError> {
        loop {
            if let Some(frame) = self.frames.take()? {
                return Ok(frame);
            }
            let read = self.output.read(&mut self.buffer);
            // Data that has already arrived is read even after the limit, and repeated calls do not extend
            // the limit.
            let limit = self.heard + SILENCE;
            let count = timeout_at(limit, read).await.map_err(|_| LinkError::Silent)??;
            if count == 0 {
                return Err(LinkError::Closed);
            }
            self.heard = Instant::now();
            self.frames.push(&self.buffer[..count]);
        }
    }
}
