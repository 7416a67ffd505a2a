//! What a step writes, on its way to our own standard streams.
//!
//! A thread of its own writes it, since whoever reads may not do so for a long time, while the agent has
//! to hear that we are there. It is given little at a time: what it does not take is not asked for.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use tokio::sync::{mpsc, watch};

use crate::sys::init::frames::journal::OutputStream;

/// How many pieces may wait, each at most as long as a frame of output.
const WAITING: usize = 8;

/// Writes to two streams, in the order in which it is asked to.
pub struct Writer {
    pieces: mpsc::Sender<(OutputStream, Vec<u8>)>,
    written: watch::Receiver<Written>,
}

/// What has been written.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    bytes: u64,
    error: Option<Errno>,
}

impl Writer {
    /// Begins at an offset of 0.
    pub(super) fn new(streams: [BorrowedFd<'_>; 2]) -> io::Result<Self> {
        let [output, errors] = streams;
        let streams = [output.try_clone_to_owned()?, errors.try_clone_to_owned()?];
        let (pieces, waiting) = mpsc::channel(WAITING);
        let (progress, written) = watch::channel(Written::default());
        // It ends with the channel; one that waits for a reader ends with the process.
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || write_all(waiting, &progress, &streams))?;
        Ok(Writer { pieces, written })
    }

    /// Returns whether there is room for a piece.
    pub(super) fn has_room(&self) -> bool {
        self.pieces.capacity() > 0
    }

    /// Appends a piece, for which there is [room](Self::has_room).
    pub(super) fn write(&self, stream: OutputStream, bytes: Vec<u8>) {
        // The thread ends after us.
        let _ = self.pieces.try_send((stream, bytes));
    }

    /// Waits until more has been written.
    pub(super) async fn goes_on(&mut self) {
        if self.written.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns how many bytes have been written; fails if some could not be.
    pub(super) fn written(&mut self) -> Result<u64, Errno> {
        let written = *self.written.borrow_and_update();
        written.error.map_or(Ok(written.bytes), Err)
    }
}

fn write_all(
    mut waiting: mpsc::Receiver<(OutputStream, Vec<u8>)>,
    progress: &watch::Sender<Written>,
    streams: &[OwnedFd; 2],
) {
    let mut is_closed = [false; 2];
    while let Some((stream, bytes)) = waiting.blocking_recv() {
        let at = usize::from(stream.number());
        let mut error = None;
        if !is_closed[at] {
            match write_piece(streams[at].as_fd(), &bytes) {
                Ok(()) => {}
                // Nobody reads any more: the step goes on.
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
