//! Writes the output of a step to the standard output and standard error of this process.
//!
//! A separate thread writes, since a write may block for a long time, while the agent needs heartbeats.
//! The queue is short: output is not requested while it is full.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread;

use oci_hooks_init::frames::journal::OutputStream;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use tokio::sync::{mpsc, watch};

/// Maximum number of queued pieces of output, each at most as long as an output frame.
const WAITING: usize = 8;

/// Writes a step's output to standard output and standard error, in the order of the calls.
pub struct OutputWriter {
    pieces: mpsc::Sender<(OutputStream, Vec<u8>)>,
    written: watch::Receiver<WriteProgress>,
}

/// Progress of the writing thread.
#[derive(Clone, Copy, Debug, Default)]
struct WriteProgress {
    bytes: u64,
    error: Option<Errno>,
}

impl OutputWriter {
    /// Starts the writing thread.
    pub(super) fn new(streams: [BorrowedFd<'_>; 2]) -> io::Result<Self> {
        let [output, errors] = streams;
        let streams = [output.try_clone_to_owned()?, errors.try_clone_to_owned()?];
        let (pieces, waiting) = mpsc::channel(WAITING);
        let (progress, written) = watch::channel(WriteProgress::default());
        // The thread ends with the channel, or with the process if it waits for a reader.
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || write_all(waiting, &progress, &streams))?;
        Ok(OutputWriter { pieces, written })
    }

    /// Returns whether the queue has room for a piece.
    pub(super) fn has_room(&self) -> bool {
        self.pieces.capacity() > 0
    }

    /// Queues a piece of output. The caller has checked that the queue [has room](Self::has_room).
    pub(super) fn write(&self, stream: OutputStream, bytes: Vec<u8>) {
        // The thread outlives this value, so the send succeeds.
        let _ = self.pieces.try_send((stream, bytes));
    }

    /// Waits for progress of the writing thread.
    pub(super) async fn wait_for_progress(&mut self) {
        if self.written.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the number of bytes written; fails after a write error.
    pub(super) fn written_bytes(&mut self) -> Result<u64, Errno> {
        let written = *self.written.borrow_and_update();
        written.error.map_or(Ok(written.bytes), Err)
    }
}

fn write_all(
    mut waiting: mpsc::Receiver<(OutputStream, Vec<u8>)>,
    progress: &watch::Sender<WriteProgress>,
    streams: &[OwnedFd; 2],
) {
    let mut is_closed = [false; 2];
    while let Some((stream, bytes)) = waiting.blocking_recv() {
        let at = stream as usize;
        let mut error = None;
        if !is_closed[at] {
            match write_piece(streams[at].as_fd(), &bytes) {
                Ok(()) => {}
                // The reader is gone: the step goes on without this stream.
                Err(Errno::PIPE) => is_closed[at] = true,
                Err(problem) => error = Some(problem),
            }
        }
        progress.send_modify(|written| {
            written.bytes += bytes.len() as u64;
            written.error = written.error.or(error);
        });
    }
}

fn write_piece(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
