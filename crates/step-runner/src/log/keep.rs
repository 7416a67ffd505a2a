//! The log file of a job.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use clap::ValueEnum;
use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, preadv2};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::masker::{Masker, Maskers, STREAMS, index};
use super::masking::Masking;
use super::patterns::TooMuchToMask;
use super::stamp::{LogStamper, LogTime};
use super::{LogStream, OutputSink, OutputSource};

/// Size of the pieces that are masked and written, so that memory use does not depend on the input.
const PIECE_BYTES: usize = 64 * 1024;

/// The file with the output of a job: masked, and in a [`LogFormat`].
///
/// Writing never fails: if the size limit is reached, the file cannot be written or there are too many
/// secrets to mask, a last line reports it, and further output is dropped. On drop, held-back output is written, and
/// followers end.
pub struct StepLog {
    file: Arc<File>,
    path: Arc<Path>,
    limit_bytes: u64,
    length: u64,
    progress: watch::Sender<LogProgress>,
    maskers: Maskers,
    format: LogFormatter,
    /// Set if the file ends within a line.
    is_cut_off: bool,
    truncation: LogTruncation,
    /// Buffer for masked output, cleared before each use.
    masked: Vec<u8>,
    /// Buffer for formatted log entries, empty between calls.
    entries: Vec<u8>,
}

/// State of a log: truncated or not, and whether the line with the reason is written.
enum LogTruncation {
    None,
    /// Truncated, but the line with the reason could not be written yet.
    Pending(String),
    Reported,
}

/// An error in creating a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be created.
    #[error(transparent)]
    File(#[from] PathError),
    /// There are too many secrets to mask.
    #[error(transparent)]
    Masking(#[from] TooMuchToMask),
}

impl StepLog {
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
            .with_path("create", path)?;
        Ok(StepLog {
            file: Arc::new(file),
            path: path.into(),
            limit_bytes,
            length: 0,
            progress: watch::Sender::default(),
            maskers,
            format: LogFormatter::new(LogFormat::default()),
            is_cut_off: false,
            truncation: LogTruncation::None,
            masked: Vec::new(),
            entries: Vec::new(),
        })
    }

    /// Sets the format of a log to which nothing was written yet.
    #[must_use]
    pub fn in_format(mut self, format: LogFormat) -> Self {
        self.format = LogFormatter::new(format);
        self
    }

    /// Returns a masker with the same secrets, for text that is not written to the log.
    pub(crate) fn masker(&self) -> Masker {
        self.maskers.masker()
    }

    /// Returns a reader of the log, during and after writing.
    pub fn reader(&self) -> LogReader {
        let (file, path) = (self.file.clone(), self.path.clone());
        LogReader { file, path, progress: self.progress.subscribe() }
    }

    /// Writes the buffered entries to the file, up to the size limit.
    fn keep(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        if matches!(self.truncation, LogTruncation::None) && !entries.is_empty() {
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
            // A partial entry is useless, and its space may be enough for the line with the reason. If the
            // file cannot be shortened, readers still stop before the partial entry: they read up to the
            // recorded length.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += entries.len() as u64;
        if let Some(last) = entries.last() {
            self.is_cut_off = *last != b'\n';
        }
        self.progress.send_modify(|progress| progress.length = self.length);
        Ok(())
    }

    /// Truncates the log at its current length.
    fn stop(&mut self, why: String) {
        self.truncation = LogTruncation::Pending(why);
        self.write_end_line();
    }

    /// Writes the line with the reason of a truncation, if it is pending.
    fn write_end_line(&mut self) {
        let LogTruncation::Pending(why) = &self.truncation else { return };
        let line = format!("step-runner: log truncated: {why}\n");
        let entry = self.format.format_last_line(&line, self.is_cut_off);
        if self.append(&entry).is_ok() {
            self.truncation = LogTruncation::Reported;
        }
    }
}

impl OutputSink for StepLog {
    fn write(&mut self, source: OutputSource, stream: LogStream, bytes: &[u8]) {
        let index = index(source, stream);
        for piece in bytes.chunks(PIECE_BYTES) {
            if !matches!(self.truncation, LogTruncation::None) {
                return;
            }
            self.masked.clear();
            self.maskers.write(index, piece, &mut self.masked);
            self.format.write(index, &self.masked, &mut self.entries);
            self.keep();
        }
    }

    fn flush(&mut self) {
        if matches!(self.truncation, LogTruncation::None) {
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
        if matches!(self.truncation, LogTruncation::None) {
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
            && matches!(self.truncation, LogTruncation::None)
        {
            self.stop(error.to_string());
        }
    }
}

impl Drop for StepLog {
    fn drop(&mut self) {
        self.flush();
        self.progress.send_modify(|progress| progress.closed = true);
    }
}

/// Maximum size of a read.
const CHUNK_BYTES: usize = 64 * 1024;

/// Length of a log, and whether the log is complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogProgress {
    length: u64,
    closed: bool,
}

/// A reader of a log, even after its file was removed. Clones share the file.
#[derive(Clone, Debug)]
pub struct LogReader {
    file: Arc<File>,
    path: Arc<Path>,
    progress: watch::Receiver<LogProgress>,
}

impl LogReader {
    /// Returns a reader of a log that is complete.
    pub(crate) fn of_ended(file: File, path: &Path) -> Result<Self, PathError> {
        let length = file.metadata().with_path("inspect", path)?.len();
        let (_, progress) = watch::channel(LogProgress { length, closed: true });
        Ok(LogReader { file: Arc::new(file), path: path.into(), progress })
    }

    /// Follows the log from an offset in bytes, which may be beyond the current end.
    pub fn follow(&self, offset: u64) -> LogFollower {
        LogFollower { log: self.clone(), offset }
    }

    /// Returns the current length in bytes.
    pub fn length(&self) -> u64 {
        self.progress.borrow().length
    }

    /// Returns bytes from the page cache; `None` if they have to be read from the disk.
    fn read_cached(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let count = preadv2(&*self.file, &mut buffer, offset, ReadWriteFlags::NOWAIT).ok()?;
        bytes.truncate(count);
        (count > 0).then_some(bytes)
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PathError> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).with_path("read", &self.path)?;
        Ok(bytes)
    }
}

/// A reader that follows a log from an offset.
#[derive(Debug)]
pub struct LogFollower {
    log: LogReader,
    offset: u64,
}

impl LogFollower {
    /// Waits for the next bytes; `None` at the end of a closed log.
    ///
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, PathError> {
        loop {
            let progress = *self.log.progress.borrow_and_update();
            let ready = progress.length.saturating_sub(self.offset);
            if ready > 0 {
                let length = usize::try_from(ready).unwrap_or(usize::MAX).min(CHUNK_BYTES);
                let read = match self.log.read_cached(self.offset, length) {
                    Some(read) => read,
                    None => {
                        let (log, offset) = (self.log.clone(), self.offset);
                        let read = spawn_blocking(move || log.read(offset, length)).await;
                        read.map_err(io::Error::from).with_path("read", &self.log.path)??
                    }
                };
                self.offset += read.len() as u64;
                return Ok(Some(read));
            }
            // An error means that the log was dropped, which closes it.
            if progress.closed || self.log.progress.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

/// Format of the log of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines with time and stream, for GitLab Runner 19.0 and newer
    ///
    /// The header of a line also has a continuation flag.
    #[default]
    Stamped,
    /// Unchanged output, for older runners
    ///
    /// These runners show every byte of a log. A last line without a newline gets one when its command ends.
    Plain,
}

/// A formatter of the output of all streams.
enum LogFormatter {
    Stamped(Box<[LogStamper; STREAMS.len()]>),
    Plain {
        /// Set if the next byte begins a line.
        is_at_begin: bool,
    },
}

impl LogFormatter {
    pub(super) fn new(format: LogFormat) -> Self {
        match format {
            LogFormat::Stamped => LogFormatter::Stamped(Box::new(
                STREAMS.map(|(source, stream)| LogStamper::of(source, stream)),
            )),
            LogFormat::Plain => LogFormatter::Plain { is_at_begin: true },
        }
    }

    /// Reads bytes of a stream, given by its [`index`], and appends complete entries to `out`.
    pub fn write(&mut self, index: usize, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            LogFormatter::Stamped(stampers) => stampers[index].write(bytes, LogTime::now(), out),
            LogFormatter::Plain { is_at_begin } => {
                out.extend_from_slice(bytes);
                if let Some(last) = bytes.last() {
                    *is_at_begin = *last == b'\n';
                }
            }
        }
    }

    /// Ends an unfinished line of a stream of a stamped log, and appends its held-back part to
    /// `out`.
    pub fn finish(&mut self, index: usize, out: &mut Vec<u8>) {
        if let LogFormatter::Stamped(stampers) = self {
            stampers[index].finish(out);
        }
    }

    /// Ends an unfinished line of a plain log, in which streams share lines.
    fn end_line(&mut self, out: &mut Vec<u8>) {
        if let LogFormatter::Plain { is_at_begin } = self
            && !*is_at_begin
        {
            out.push(b'\n');
            *is_at_begin = true;
        }
    }

    /// Formats `text` as the last line of a log, after a line break if the log ends within a line.
    fn format_last_line(&self, text: &str, is_cut_off: bool) -> Vec<u8> {
        let mut line = Vec::new();
        let mut format = match self {
            LogFormatter::Stamped(_) => LogFormatter::new(LogFormat::Stamped),
            LogFormatter::Plain { .. } => LogFormatter::Plain { is_at_begin: !is_cut_off },
        };
        format.end_line(&mut line);
        format.write(index(OutputSource::Runner, LogStream::Err), text.as_bytes(), &mut line);
        line
    }
}

#[cfg(test)]
mod tests;
