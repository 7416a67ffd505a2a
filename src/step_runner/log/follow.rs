//! Reading a log while it is written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::sys::fs::{PathContext as _, PathError};

/// As much is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// How far a log has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) length: u64,
    pub(super) closed: bool,
}

/// Reads a log; clones read the same one, also when its file has no name any more.
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

    /// Returns what gives the bytes from an offset on, which may be beyond what there is so far.
    pub fn follow(&self, offset: u64) -> Follower {
        Follower { log: self.clone(), offset }
    }

    /// Returns how many bytes the log has so far.
    pub fn length(&self) -> u64 {
        self.progress.borrow().length
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PathError> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).at("read", &self.path)?;
        Ok(bytes)
    }
}

/// Gives the bytes of a log as they come.
#[derive(Debug)]
pub struct Follower {
    log: LogReader,
    offset: u64,
}

impl Follower {
    /// Returns the bytes that follow, some or all there are, as soon as there are any; none when
    /// the log is closed and was read to its end.
    ///
    /// Nothing is lost when this is cancelled.
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
            // The sender lives as long as the log, which is closed when it goes.
            if progress.closed || self.log.progress.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Returns the offset of the byte that comes next.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}
