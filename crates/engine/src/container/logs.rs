//! Writes and reads the log of a container: the newest part of its output, up to a limit.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use oci_hooks_files::fs::{PathContext as _, PathError};
use tracing::debug;

/// Stream to which a line was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdStream {
    Stdout,
    Stderr,
}

/// A line of a container's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub at: Timestamp,
    pub stream: StdStream,
    pub text: Vec<u8>,
}

/// Maximum length of a line. A longer line is split into pieces, each at most twice as long.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Writer of a log, which starts a new file at half of the limit. It has a shared lock on the file.
#[derive(Debug)]
pub struct LogWriter {
    path: PathBuf,
    file: File,
    written: u64,
    limit: u64,
    partial: [Vec<u8>; 2],
}

impl LogWriter {
    /// Opens a log that keeps at most about this many bytes, creating it if missing.
    pub fn open(path: &Path, limit: u64) -> Result<Self, PathError> {
        let file = open(path).with_path("open", path)?;
        let written = file.metadata().with_path("look up", path)?.len();
        Ok(LogWriter {
            file,
            path: path.to_owned(),
            written,
            limit,
            partial: [Vec::new(), Vec::new()],
        })
    }

    /// Adds bytes of a stream. Only whole lines are written, so that lines of the two streams do not mix.
    pub fn add(&mut self, stream: StdStream, bytes: &[u8]) -> io::Result<()> {
        let mut partial = std::mem::take(&mut self.partial[stream as usize]);
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in part.chunks(MAX_LINE_BYTES) {
                partial.extend_from_slice(piece);
                if partial.ends_with(b"\n") || partial.len() >= MAX_LINE_BYTES {
                    self.line(stream, partial.strip_suffix(b"\n").unwrap_or(&partial))?;
                    partial.clear();
                }
            }
        }
        self.partial[stream as usize] = partial;
        Ok(())
    }

    /// Writes the last lines of the streams, which have no newline.
    pub fn flush(&mut self) -> io::Result<()> {
        for stream in [StdStream::Stdout, StdStream::Stderr] {
            let partial = std::mem::take(&mut self.partial[stream as usize]);
            if !partial.is_empty() {
                self.line(stream, &partial)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, stream: StdStream, text: &[u8]) -> io::Result<()> {
        let name = match stream {
            StdStream::Stdout => "stdout",
            StdStream::Stderr => "stderr",
        };
        let mut line = format!("{} {name} ", Timestamp::now()).into_bytes();
        line.extend_from_slice(text);
        line.push(b'\n');
        let length = line.len() as u64;
        if self.written > 0 && self.written + length > self.limit / 2 {
            if older_log_path(&self.path).exists() {
                File::create(cut_marker_path(&self.path))?;
            }
            fs::rename(&self.path, older_log_path(&self.path))?;
            self.file = open(&self.path)?;
            self.written = 0;
        }
        self.written += length;
        self.file.write_all(&line)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // Some network file systems have no locks. Without one, the log counts as that of an ended process.
    if let Err(error) = file.lock_shared() {
        debug!(path = %path.display(), %error, "cannot lock the log");
    }
    Ok(file)
}

fn older_log_path(path: &Path) -> PathBuf {
    path.with_extension("1")
}

/// Returns the file that exists if lines of a log were dropped.
pub fn cut_marker_path(path: &Path) -> PathBuf {
    path.with_extension("cut")
}

/// Returns whether the oldest lines of a log were dropped, because it exceeded its limit.
pub fn is_cut(path: &Path) -> bool {
    cut_marker_path(path).exists()
}

/// Returns the last lines of a log, oldest first.
pub fn last_lines(path: &Path, count: usize) -> Result<Vec<LogLine>, PathError> {
    let mut lines = std::collections::VecDeque::new();
    for path in [older_log_path(path), path.to_owned()] {
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.with_path("open", &path)?,
        };
        let mut reader = BufReader::new(file);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).with_path("read", &path)? > 0 {
            lines.extend(parse(bytes.strip_suffix(b"\n").unwrap_or(&bytes)));
            if lines.len() > count {
                lines.pop_front();
            }
            bytes.clear();
        }
    }
    Ok(lines.into())
}

/// The end of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTail {
    /// The last lines, oldest first.
    pub lines: Vec<LogLine>,
    /// If set, there are or were earlier lines.
    pub is_cut: bool,
}

/// Returns the last lines of a log, at most this many lines and bytes, and reads no more of its files.
pub fn tail(path: &Path, count: usize, bytes: u64) -> Result<LogTail, PathError> {
    let mut is_cut = is_cut(path);
    let mut parts = Vec::new();
    let mut left = bytes;
    for path in [path.to_owned(), older_log_path(path)] {
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.with_path("open", &path)?,
        };
        let length = file.metadata().with_path("look up", &path)?.len();
        let skipped = length.saturating_sub(left);
        is_cut |= skipped > 0;
        file.seek(SeekFrom::Start(skipped)).with_path("read", &path)?;
        let mut part = Vec::new();
        // The writer may add lines meanwhile.
        file.take(left).read_to_end(&mut part).with_path("read", &path)?;
        left -= part.len() as u64;
        if skipped > 0 {
            // The rest of a truncated line is dropped.
            let whole = part.iter().position(|&byte| byte == b'\n').map_or(part.len(), |at| at + 1);
            part.drain(..whole);
        }
        parts.push(part);
    }
    parts.reverse();
    let parts = parts.concat();
    let mut lines: Vec<_> = parts.split(|&byte| byte == b'\n').filter_map(parse).collect();
    let surplus = lines.len().saturating_sub(count);
    lines.drain(..surplus);
    Ok(LogTail { lines, is_cut: is_cut || surplus > 0 })
}

/// Reader of a log that is still written to, from the oldest kept line on.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    reader: BufReader<File>,
    /// Start of an incomplete line.
    partial: Vec<u8>,
}

impl LogReader {
    /// Opens a log for reading from its oldest line on.
    ///
    /// # Errors
    ///
    /// Fails if the log does not exist or cannot be read.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let file = match File::open(older_log_path(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(path),
            file => file,
        };
        let reader = BufReader::new(file.with_path("open", path)?);
        Ok(LogReader { path: path.to_owned(), reader, partial: Vec::new() })
    }

    /// Returns the lines added since the last call.
    pub fn lines(&mut self) -> Result<Vec<LogLine>, PathError> {
        let mut lines = Vec::new();
        loop {
            while self.reader.read_until(b'\n', &mut self.partial).with_path("read", &self.path)?
                > 0
            {
                if let Some(line) = self.partial.strip_suffix(b"\n") {
                    lines.extend(parse(line));
                    self.partial.clear();
                }
            }
            // A newer file is looked for before this one is read to its end, so that no line of this file is missed.
            match fs::metadata(&self.path) {
                Ok(newest) if !self.is(&newest)? => {
                    let mut rest = Vec::new();
                    self.reader.read_to_end(&mut rest).with_path("read", &self.path)?;
                    let rest = [std::mem::take(&mut self.partial), rest].concat();
                    lines.extend(rest.split(|&byte| byte == b'\n').filter_map(parse));
                    let file = File::open(&self.path).with_path("open", &self.path)?;
                    self.reader = BufReader::new(file);
                }
                _ => return Ok(lines),
            }
        }
    }

    /// Returns whether `file` is the file that this reader has open.
    fn is(&self, file: &fs::Metadata) -> Result<bool, PathError> {
        let own = self.reader.get_ref().metadata().with_path("look up", &self.path)?;
        Ok((own.dev(), own.ino()) == (file.dev(), file.ino()))
    }
}

fn parse(line: &[u8]) -> Option<LogLine> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let at = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let stream = match parts.next()? {
        b"stdout" => StdStream::Stdout,
        b"stderr" => StdStream::Stderr,
        _ => return None,
    };
    Some(LogLine { at, stream, text: parts.next()?.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[LogLine]) -> Vec<String> {
        lines.iter().map(|line| String::from_utf8(line.text.clone()).unwrap()).collect()
    }

    #[test]
    fn lines_of_both_streams_stay_intact() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::open(&path, 1 << 20).unwrap();
        log.add(StdStream::Stdout, b"a").unwrap();
        log.add(StdStream::Stderr, b"x y\nz").unwrap();
        log.add(StdStream::Stdout, b"b\nc\n").unwrap();
        log.flush().unwrap();
        let lines = last_lines(&path, 10).unwrap();
        assert_eq!(texts(&lines), ["x y", "ab", "c", "z"]);
        assert_eq!(lines[0].stream, StdStream::Stderr);
        assert_eq!(texts(&last_lines(&path, 2).unwrap()), ["c", "z"]);
    }

    #[test]
    fn the_newest_part_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::open(&path, 4096).unwrap();
        for number in 0..1000 {
            log.add(StdStream::Stdout, format!("line {number}\n").as_bytes()).unwrap();
        }
        log.add(StdStream::Stdout, &[b'x'; 100_000]).unwrap();
        log.flush().unwrap();
        let kept: u64 = [path.clone(), older_log_path(&path)]
            .iter()
            .map(|path| fs::metadata(path).unwrap().len())
            .sum();
        // A piece of a line may be longer than the limit.
        assert!(kept < 4096 + 2 * 17_000, "{kept}");
        assert!(!last_lines(&path, 1).unwrap().is_empty());
    }

    #[test]
    fn reader_misses_nothing_during_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        LogReader::open(&path).unwrap_err();
        let mut log = LogWriter::open(&path, 4096).unwrap();
        log.add(StdStream::Stdout, b"first\n").unwrap();
        let mut reader = LogReader::open(&path).unwrap();
        assert_eq!(texts(&reader.lines().unwrap()), ["first"]);
        assert!(reader.lines().unwrap().is_empty());
        let mut seen = Vec::new();
        for number in 0..1000 {
            log.add(StdStream::Stderr, format!("line {number}\n").as_bytes()).unwrap();
            seen.extend(texts(&reader.lines().unwrap()));
        }
        let all: Vec<_> = (0..1000).map(|number| format!("line {number}")).collect();
        assert_eq!(seen, all);
        let kept = texts(&LogReader::open(&path).unwrap().lines().unwrap());
        assert_eq!(kept, texts(&last_lines(&path, usize::MAX).unwrap()));
    }

    #[test]
    fn last_lines_are_limited_by_number_and_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::open(&path, 8192).unwrap();
        for number in 0..20 {
            log.add(StdStream::Stdout, format!("line {number}\n").as_bytes()).unwrap();
        }
        let LogTail { lines, is_cut } = tail(&path, 20, 8192).unwrap();
        assert_eq!((lines.len(), is_cut), (20, false));
        let LogTail { lines, is_cut } = tail(&path, 3, 8192).unwrap();
        assert_eq!(
            (texts(&lines), is_cut),
            (vec!["line 17".into(), "line 18".into(), "line 19".into()], true)
        );
        let LogTail { lines, is_cut } = tail(&path, 20, 100).unwrap();
        assert_eq!((texts(&lines), is_cut), (vec!["line 18".into(), "line 19".into()], true));
        // In both files, after the oldest lines were dropped.
        for number in 20..1000 {
            log.add(StdStream::Stdout, format!("line {number}\n").as_bytes()).unwrap();
        }
        let all = texts(&last_lines(&path, usize::MAX).unwrap());
        let LogTail { lines, is_cut } = tail(&path, usize::MAX, u64::MAX).unwrap();
        assert_eq!((texts(&lines), is_cut), (all, true));
        let LogTail { lines, .. } = tail(&path, usize::MAX, 6000).unwrap();
        assert!(lines.len() > 80 && texts(&lines).ends_with(&["line 999".into()]), "{lines:?}");
    }

    #[test]
    fn missing_log_has_no_lines() {
        assert!(last_lines(Path::new("/no/such/log"), 10).unwrap().is_empty());
        assert_eq!(tail(Path::new("/no/such/log"), 10, 10).unwrap(), LogTail::default());
    }
}
