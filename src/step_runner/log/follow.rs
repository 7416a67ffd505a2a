//! Following a log while it is written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::sys::fs::{PathContext as _, PathError};

/// Maximum size of a read.
const CHUNK_BYTES: usize = 64 * 1024;

/// Length of a log, and whether it is complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) length: u64,
    pub(super) closed: bool,
}

/// Reads a log, even after its file was removed. Clones share it.
#[derive(Clone, Debug)]
pub struct LogReader {
    file: Arc<File>,
    path: Arc<Path>,
    progress: watch::Receiver<Progress>,
}

impl LogReader {
    pub(super) fn new(
        file: Arc<File>,
        path: Arc<Path>,
        progress: watch::Receiver<Progress>,
    ) -> Self {
        LogReader { file, path, progress }
    }

    /// Follows the log from an offset in bytes, which may be beyond the current end.
    pub fn follow(&self, offset: u64) -> Follower {
        Follower { log: self.clone(), offset }
    }

    /// Returns the current length in bytes.
    pub fn length(&self) -> u64 {
        self.progress.borrow().length
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PathError> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).at("read", &self.path)?;
        Ok(bytes)
    }
}

/// Follows a log from an offset.
#[derive(Debug)]
pub struct Follower {
    log: LogReader,
    offset: u64,
}

impl Follower {
    /// Waits for the next bytes; `None` at the end of a closed log.
    ///
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, PathError> {
        loop {
            let progress = *self.log.progress.borrow_and_update();
            let ready = progress.length.saturating_sub(self.offset);
            if ready > 0 {
                let length = usize::try_from(ready).unwrap_or(usize::MAX).min(CHUNK_BYTES);
                let (log, offset) = (self.log.clone(), self.offset);
                let read = spawn_blocking(move || log.read(offset, length)).await;
                let read = read.map_err(io::Error::from).at("read", &self.log.path)??;
                self.offset += read.len() as u64;
                return Ok(Some(read));
            }
            // The log owns the sender, and is closed when it is dropped.
            if progress.closed || self.log.progress.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}
