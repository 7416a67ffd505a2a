//! What a container writes, kept up to a limit: the newest part of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::sys::fs::{PathContext as _, PathError};

/// Which stream a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it came.
    pub at: Timestamp,
    /// Where it was written to.
    pub stream: Stream,
    /// What it says, without the newline.
    pub text: Vec<u8>,
}

/// A line longer than this is cut into several, each at most twice as long.
const LONGEST_LINE: usize = 16 << 10;

/// Writes lines to a file, and to a new one when that is half full.
pub(super) struct LogWriter {
    path: PathBuf,
    file: File,
    written: u64,
    limit: u64,
    partial: [Vec<u8>; 2],
}

impl LogWriter {
    /// Makes the log, of which at most this many bytes are kept.
    pub(super) fn create(path: &Path, limit: u64) -> Result<Self, PathError> {
        Ok(LogWriter {
            file: open(path).at("create", path)?,
            path: path.to_owned(),
            written: 0,
            limit,
            partial: [Vec::new(), Vec::new()],
        })
    }

    /// Adds bytes of a stream. Lines are written when they are whole, so that those of the two
    /// streams do not mix.
    pub(super) fn add(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut partial = std::mem::take(&mut self.partial[stream as usize]);
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in part.chunks(LONGEST_LINE) {
                partial.extend_from_slice(piece);
                if partial.ends_with(b"\n") || partial.len() >= LONGEST_LINE {
                    self.line(stream, partial.strip_suffix(b"\n").unwrap_or(&partial))?;
                    partial.clear();
                }
            }
        }
        self.partial[stream as usize] = partial;
        Ok(())
    }

    /// Writes the ends of the streams that have no newline.
    pub(super) fn finish(mut self) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let partial = std::mem::take(&mut self.partial[stream as usize]);
            if !partial.is_empty() {
                self.line(stream, &partial)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, stream: Stream, text: &[u8]) -> io::Result<()> {
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let mut line = format!("{} {name} ", Timestamp::now()).into_bytes();
        line.extend_from_slice(text);
        line.push(b'\n');
        let length = line.len() as u64;
        if self.written > 0 && self.written + length > self.limit / 2 {
            fs::rename(&self.path, older(&self.path))?;
            self.file = open(&self.path)?;
            self.written = 0;
        }
        self.written += length;
        self.file.write_all(&line)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("1")
}

/// Returns the last lines of a log, oldest first.
pub(super) fn last_lines(path: &Path, count: usize) -> Result<Vec<LogLine>, PathError> {
    let mut lines = std::collections::VecDeque::new();
    for path in [older(path), path.to_owned()] {
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.at("open", &path)?,
        };
        let mut reader = BufReader::new(file);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).at("read", &path)? > 0 {
            lines.extend(parse(bytes.strip_suffix(b"\n").unwrap_or(&bytes)));
            if lines.len() > count {
                lines.pop_front();
            }
            bytes.clear();
        }
    }
    Ok(lines.into())
}

fn parse(line: &[u8]) -> Option<LogLine> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let at = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
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
    fn lines_of_both_streams_stay_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::create(&path, 1 << 20).unwrap();
        log.add(Stream::Stdout, b"a").unwrap();
        log.add(Stream::Stderr, b"x y\nz").unwrap();
        log.add(Stream::Stdout, b"b\nc\n").unwrap();
        log.finish().unwrap();
        let lines = last_lines(&path, 10).unwrap();
        assert_eq!(texts(&lines), ["x y", "ab", "c", "z"]);
        assert_eq!(lines[0].stream, Stream::Stderr);
        assert_eq!(texts(&last_lines(&path, 2).unwrap()), ["c", "z"]);
    }

    #[test]
    fn the_newest_part_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::create(&path, 4096).unwrap();
        for number in 0..1000 {
            log.add(Stream::Stdout, format!("line {number}\n").as_bytes()).unwrap();
        }
        log.add(Stream::Stdout, &[b'x'; 100_000]).unwrap();
        log.finish().unwrap();
        let kept: u64 =
            [path.clone(), older(&path)].iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        // One piece of a line may be longer than the limit.
        assert!(kept < 4096 + 2 * 17_000, "{kept}");
        assert!(!last_lines(&path, 1).unwrap().is_empty());
    }

    #[test]
    fn no_log_has_no_lines() {
        assert!(last_lines(Path::new("/no/such/log"), 10).unwrap().is_empty());
    }
}
