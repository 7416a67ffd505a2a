//! The log file of a job.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use tokio::sync::watch;

use super::follow::{LogReader, Progress};
use super::format::Formatter;
use super::masking::Masking;
use super::patterns::TooMuchToMask;
use super::streams::{Maskers, STREAMS, index};
use super::{LogFormat, Output, Source, Stream};
use crate::sys::fs::{PathContext as _, PathError};

/// Size of the pieces that are masked and written, so that memory use does not depend on the input.
const PIECE_BYTES: usize = 64 * 1024;

/// Writes the output of a job to a file: masked, and in a form of [`LogFormat`].
///
/// Writing never fails: if the size limit is reached, the file cannot be written or there are too many
/// secrets to mask, a last line reports it, and further output is dropped.
pub struct Log {
    file: Arc<File>,
    path: Arc<Path>,
    limit_bytes: u64,
    length: u64,
    progress: watch::Sender<Progress>,
    maskers: Maskers,
    format: Formatter,
    /// Whether the file ends within a line.
    is_cut_off: bool,
    end: LogEnd,
    error: Option<PathError>,
    /// Buffers for the format and for the file, empty between calls.
    masked: Vec<u8>,
    entries: Vec<u8>,
}

/// Whether a log was truncated.
enum LogEnd {
    Open,
    /// Truncated, but the line with the reason could not be written yet.
    Pending(String),
    Written,
}

/// An error in creating a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be created.
    #[error(transparent)]
    File(#[from] PathError),
    /// There are too many secrets to mask.
    #[error(transparent)]
    Masking(#[from] TooMuchToMask),
}

impl Log {
    /// Creates the file, which must not exist, in a private directory. The line that reports a truncation
    /// may exceed the limit.
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
            format: Formatter::new(LogFormat::default()),
            is_cut_off: false,
            end: LogEnd::Open,
            error: None,
            masked: Vec::new(),
            entries: Vec::new(),
        })
    }

    /// Sets the form of a log to which nothing was written yet.
    #[must_use]
    pub fn in_format(mut self, format: LogFormat) -> Self {
        self.format = Formatter::new(format);
        self
    }

    /// Returns a reader of the log, during and after writing.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.file.clone(), self.path.clone(), self.progress.subscribe())
    }

    /// Writes what was held back and ends followers; dropping the log does the same.
    ///
    /// The error is that of the first failed write, where the log is truncated.
    pub fn close(mut self) -> Result<(), PathError> {
        self.end();
        self.error.take().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.flush();
        self.progress.send_modify(|progress| progress.closed = true);
    }

    /// Writes complete entries up to the size limit.
    fn keep(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        if matches!(self.end, LogEnd::Open) && !entries.is_empty() {
            let room = usize::try_from(self.limit_bytes - self.length).unwrap_or(usize::MAX);
            let fits = room >= entries.len();
            if !fits {
                let line_end = entries[..room].iter().rposition(|&byte| byte == b'\n');
                entries.truncate(line_end.map_or(0, |newline| newline + 1));
            }
            match self.append(&entries) {
                Err(error) => self.stop(format!("write error: {error}")),
                Ok(()) if !fits => {
                    self.stop(format!("limit of {} bytes reached", self.limit_bytes));
                }
                Ok(()) => {}
            }
        }
        entries.clear();
        self.entries = entries;
    }

    fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(entries, self.length) {
            // A partial entry is useless, and its space may be enough for the line with the reason. If
            // it stays, readers do not see it: it is beyond the length.
            let _ = self.file.set_len(self.length);
            let again = io::Error::new(error.kind(), error.to_string());
            self.error.get_or_insert(PathError::new("write", &self.path, again));
            return Err(error);
        }
        self.length += entries.len() as u64;
        if let Some(last) = entries.last() {
            self.is_cut_off = *last != b'\n';
        }
        self.progress.send_modify(|progress| progress.length = self.length);
        Ok(())
    }

    /// Truncates the log here for a reason.
    fn stop(&mut self, why: String) {
        self.end = LogEnd::Pending(why);
        self.write_end_line();
    }

    /// Writes the line with the reason of a truncation, unless it is written.
    fn write_end_line(&mut self) {
        let LogEnd::Pending(why) = &self.end else { return };
        let line = format!("step-runner: log truncated: {why}\n");
        let entry = self.format.last_line(&line, self.is_cut_off);
        if self.append(&entry).is_ok() {
            self.end = LogEnd::Written;
        }
    }
}

impl Output for Log {
    fn write(&mut self, source: Source, stream: Stream, bytes: &[u8]) {
        let index = index(source, stream);
        for piece in bytes.chunks(PIECE_BYTES) {
            if !matches!(self.end, LogEnd::Open) {
                return;
            }
            self.masked.clear();
            self.maskers.write(index, piece, &mut self.masked);
            self.format.write(index, &self.masked, &mut self.entries);
            self.keep();
        }
    }

    fn flush(&mut self) {
        if matches!(self.end, LogEnd::Open) {
            for index in 0..STREAMS.len() {
                self.masked.clear();
                self.maskers.finish(index, &mut self.masked);
                self.format.write(index, &self.masked, &mut self.entries);
                self.format.finish(index, &mut self.entries);
            }
            self.format.end_line(&mut self.entries);
            self.keep();
        }
        self.write_end_line();
    }

    fn release(&mut self, now: Instant) -> Option<Instant> {
        if matches!(self.end, LogEnd::Open) {
            for index in 0..STREAMS.len() {
                self.masked.clear();
                self.maskers.release(index, now, &mut self.masked);
                self.format.write(index, &self.masked, &mut self.entries);
            }
            self.keep();
        }
        self.maskers.next_release()
    }

    fn mask(&mut self, secret: &str) {
        if let Err(error) = self.maskers.add_secret(secret)
            && matches!(self.end, LogEnd::Open)
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
