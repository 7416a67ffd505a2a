//! One stream of frames to the agent of a container.
//!
//! Nothing ends a stream's input on servers before 1.30, so that every frame says its own length.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::sys::init::frames::{FrameError, Frames};

/// How long an agent that has nothing to say may say nothing: it sends a heartbeat every 5 seconds.
const SILENCE: Duration = Duration::from_secs(20);
/// The longest payload of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const READ_AT_ONCE: usize = 64 << 10;

/// A stream to an agent.
pub struct Link {
    input: Box<dyn AsyncWrite + Send + Unpin>,
    output: Box<dyn AsyncRead + Send + Unpin>,
    frames: Frames,
    buffer: Vec<u8>,
    /// When something came last.
    heard: Instant,
}

/// Why a stream is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the stream to the container ended")]
    Closed,
    #[error("the stream to the container broke")]
    Broken(#[from] io::Error),
    #[error("nothing came from the container for {} seconds", SILENCE.as_secs())]
    Silent,
    /// Whatever answers is no agent of ours.
    #[error("invalid answer from the agent in the container")]
    Frame(#[from] FrameError),
}

impl Link {
    pub(in crate::container_hook::kubernetes) fn new(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
    ) -> Self {
        let (input, output) = (Box::new(input), Box::new(output));
        let frames = Frames::new(MAX_ANSWER_BYTES);
        Link { input, output, frames, buffer: vec![0; READ_AT_ONCE], heard: Instant::now() }
    }

    /// Sends whole frames.
    pub async fn send(&mut self, frames: &[u8]) -> Result<(), LinkError> {
        self.split().0.send(frames).await
    }

    /// Returns the kind and the payload of the next frame; may be dropped while it waits, without any
    /// loss.
    pub async fn receive(&mut self) -> Result<(u8, Vec<u8>), LinkError> {
        self.split().1.receive().await
    }

    /// Returns both directions, for who sends and receives at the same time.
    pub fn split(&mut self) -> (Sending<'_>, Receiving<'_>) {
        let Link { input, output, frames, buffer, heard } = self;
        (
            Sending { input: input.as_mut() },
            Receiving { output: output.as_mut(), frames, buffer, heard },
        )
    }
}

/// What goes to an agent.
pub struct Sending<'l> {
    input: &'l mut (dyn AsyncWrite + Send + Unpin),
}

/// What comes from an agent.
pub struct Receiving<'l> {
    output: &'l mut (dyn AsyncRead + Send + Unpin),
    frames: &'l mut Frames,
    buffer: &'l mut Vec<u8>,
    heard: &'l mut Instant,
}

impl Sending<'_> {
    /// Sends whole frames.
    pub async fn send(&mut self, frames: &[u8]) -> Result<(), LinkError> {
        let sent = async {
            self.input.write_all(frames).await?;
            self.input.flush().await
        };
        Ok(timeout(SILENCE, sent).await.map_err(|_| LinkError::Silent)??)
    }
}

impl Receiving<'_> {
    /// Returns the kind and the payload of the next frame; may be dropped while it waits, without any
    /// loss.
    pub async fn receive(&mut self) -> Result<(u8, Vec<u8>), LinkError> {
        loop {
            if let Some(frame) = self.frames.take()? {
                return Ok(frame);
            }
            let read = self.output.read(self.buffer);
            // What there is already is read, however late; and whoever asks again and again does not wait
            // for ever.
            let limit = *self.heard + SILENCE;
            let count = timeout_at(limit, read).await.map_err(|_| LinkError::Silent)??;
            if count == 0 {
                return Err(LinkError::Closed);
            }
            *self.heard = Instant::now();
            self.frames.push(&self.buffer[..count]);
        }
    }
}
