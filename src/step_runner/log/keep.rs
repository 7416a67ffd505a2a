//! The file that keeps what a job writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use tokio::sync::watch;

use super::follow::{LogReader, Progress};
use super::masking::Masking;
use super::patterns::TooMuchToMask;
use super::stamp::{Stamper, Time};
use super::streams::{Maskers, STREAMS, index};
use super::{Output, Source, Stream};
use crate::sys::fs::{PathContext as _, PathError};

/// As much is masked and written at a time: what a log needs of memory does not depend on what
/// it is given.
const PIECE_BYTES: usize = 64 * 1024;

/// Keeps what a job writes in a file: masked, then as lines with a header.
///
/// It takes what it is given whatever happens. If the limit is reached, the file cannot be written
/// or there are more secrets than can be looked for, a last line says so, and what follows is
/// dropped.
pub struct Log {
    file: Arc<File>,
    path: Arc<Path>,
    limit_bytes: u64,
    length: u64,
    progress: watch::Sender<Progress>,
    maskers: Maskers,
    stampers: [Stamper; STREAMS.len()],
    end: End,
    error: Option<PathError>,
    /// What goes to a stamper, and what to the file: empty between calls.
    masked: Vec<u8>,
    entries: Vec<u8>,
}

/// Whether a log has come to its end before the job.
enum End {
    Not,
    /// It has, and there was no room for the line that says why.
    Unsaid(String),
    Said,
}

/// A log that cannot be begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Its file cannot be made.
    #[error(transparent)]
    File(#[from] PathError),
    /// There is more to mask than can be looked for.
    #[error(transparent)]
    Masking(#[from] TooMuchToMask),
}

impl Log {
    /// Makes the file, which must not be there, in a directory that is nobody else's; the one
    /// line that says why a log ends may go beyond the limit.
    pub fn create(path: &Path, masking: &Masking, limit_bytes: u64) -> Result<Self, LogError> {
        let maskers = Maskers::new(masking)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .at("create", path)?;
        Ok(Log {
            file: Arc::new(file),
            path: path.into(),
            limit_bytes,
            length: 0,
            progress: watch::Sender::default(),
            maskers,
            stampers: STREAMS.map(|(source, stream)| Stamper::of(source, stream)),
            end: End::Not,
            error: None,
            masked: Vec::new(),
            entries: Vec::new(),
        })
    }

    /// Returns what reads the log, while it is written and after.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.file.clone(), self.path.clone(), self.progress.subscribe())
    }

    /// Writes what was held back and lets followers come to the end; so does dropping the log.
    ///
    /// The error is that of the first write that failed. The log ends there.
    pub fn close(mut self) -> Result<(), PathError> {
        self.end();
        self.error.take().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.flush();
        self.progress.send_modify(|progress| progress.closed = true);
    }

    /// Writes the entries that are ready, as far as there is room.
    fn keep(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        if matches!(self.end, End::Not) && !entries.is_empty() {
            let room = usize::try_from(self.limit_bytes - self.length).unwrap_or(usize::MAX);
            let fits = room >= entries.len();
            if !fits {
                let line_end = entries[..room].iter().rposition(|&byte| byte == b'\n');
                entries.truncate(line_end.map_or(0, |newline| newline + 1));
            }
            match self.append(&entries) {
                Err(error) => self.stop(format!("it cannot be written: {error}")),
                Ok(()) if !fits => self.stop(format!("it may have {} bytes", self.limit_bytes)),
                Ok(()) => {}
            }
        }
        entries.clear();
        self.entries = entries;
    }

    fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(entries, self.length) {
            // Half an entry is of no use, and the room may do for the line that says why. If it
            // stays, nobody sees it: it is beyond the length.
            let _ = self.file.set_len(self.length);
            let again = io::Error::new(error.kind(), error.to_string());
            self.error.get_or_insert(PathError::new("write", &self.path, again));
            return Err(error);
        }
        self.length += entries.len() as u64;
        self.progress.send_modify(|progress| progress.length = self.length);
        Ok(())
    }

    /// Takes nothing more.
    fn stop(&mut self, why: String) {
        self.end = End::Unsaid(why);
        self.say_why();
    }

    /// Writes the line that says why the log ends, if it does and it is not there.
    fn say_why(&mut self) {
        let End::Unsaid(why) = &self.end else { return };
        let line = format!("step-runner: the log ends here: {why}\n");
        let mut entry = Vec::new();
        Stamper::of(Source::Runner, Stream::Err).write(line.as_bytes(), Time::now(), &mut entry);
        if self.append(&entry).is_ok() {
            self.end = End::Said;
        }
    }
}

impl Output for Log {
    fn write(&mut self, source: Source, stream: Stream, bytes: &[u8]) {
        let index = index(source, stream);
        for piece in bytes.chunks(PIECE_BYTES) {
            if !matches!(self.end, End::Not) {
                return;
            }
            self.masked.clear();
            self.maskers.write(index, piece, &mut self.masked);
            self.stampers[index].write(&self.masked, Time::now(), &mut self.entries);
            self.keep();
        }
    }

    fn flush(&mut self) {
        if matches!(self.end, End::Not) {
            for index in 0..STREAMS.len() {
                self.masked.clear();
                self.maskers.finish(index, &mut self.masked);
                self.stampers[index].write(&self.masked, Time::now(), &mut self.entries);
                self.stampers[index].finish(&mut self.entries);
            }
            self.keep();
        }
        self.say_why();
    }

    fn release(&mut self, now: Instant) -> Option<Instant> {
        if matches!(self.end, End::Not) {
            for index in 0..STREAMS.len() {
                self.masked.clear();
                self.maskers.release(index, now, &mut self.masked);
                self.stampers[index].write(&self.masked, Time::now(), &mut self.entries);
            }
            self.keep();
        }
        self.maskers.next_release()
    }

    fn mask(&mut self, secret: &str) {
        if let Err(error) = self.maskers.add_secret(secret)
            && matches!(self.end, End::Not)
        {
            self.stop(error.to_string());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
