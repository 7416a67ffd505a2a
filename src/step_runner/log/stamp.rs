//! Log lines in GitLab Runner's format: time, stream, continuation flag.

use std::io::Write as _;

use jiff::Timestamp;

use super::{Source, Stream};

/// Length of a timestamp such as `2026-05-05T12:00:00.000000Z`.
pub(super) const TIME_BYTES: usize = 27;

/// Length of the header of a line: the time, a space, two hexadecimal digits for the stream, `O` or `E`,
/// and a space or `+`.
pub(super) const HEADER_BYTES: usize = TIME_BYTES + 5;

/// Longer lines are written in parts before their end.
const LINE_BYTES: usize = 8 * 1024;

/// A timestamp of a log line: UTC, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Time([u8; TIME_BYTES]);

impl Time {
    /// Returns the time now.
    pub fn now() -> Self {
        Timestamp::now().into()
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        let mut text = [0; TIME_BYTES];
        // Years before 0 have a sign and two more digits.
        let time = time.max(Timestamp::UNIX_EPOCH);
        write!(&mut text[..], "{time:.6}").expect("the years to 9999 have four digits");
        Time(text)
    }
}

/// Formats one stream as lines with a header.
///
/// A line that ends with a newline is an entry. A partial line is held back until it is longer than 8 KiB
/// or contains a carriage return, as progress bars do; then it is an entry too, and the next one has a
/// `+`, which marks a continuation of the line.
pub struct Stamper {
    stream: [u8; 3],
    /// A partial entry with its header; empty if there is none.
    entry: Vec<u8>,
    continues: bool,
}

impl Stamper {
    /// Returns a stamper for a stream with this number.
    pub fn new(number: u8, stream: Stream) -> Self {
        let digit = |digit| b"0123456789abcdef"[usize::from(digit)];
        let kind = match stream {
            Stream::Out => b'O',
            Stream::Err => b'E',
        };
        Stamper {
            stream: [digit(number >> 4), digit(number & 15), kind],
            entry: Vec::new(),
            continues: false,
        }
    }

    /// Returns a stamper for the stream of a source.
    pub fn of(source: Source, stream: Stream) -> Self {
        let number = match source {
            Source::Runner => 0,
            Source::Step => 1,
        };
        Self::new(number, stream)
    }

    /// Reads bytes and appends complete entries to `out`.
    pub fn write(&mut self, mut bytes: &[u8], now: Time, out: &mut Vec<u8>) {
        while let Some(newline) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = bytes.split_at(newline + 1);
            self.begin(now, out);
            out.extend_from_slice(line);
            self.continues = false;
            bytes = rest;
        }
        if bytes.is_empty() {
            return;
        }
        let held = self.entry.len().saturating_sub(HEADER_BYTES);
        if held + bytes.len() > LINE_BYTES || bytes.contains(&b'\r') {
            self.begin(now, out);
            out.extend_from_slice(bytes);
            out.push(b'\n');
            self.continues = true;
        } else {
            if self.entry.is_empty() {
                self.entry.extend_from_slice(&self.header(now));
            }
            self.entry.extend_from_slice(bytes);
        }
    }

    /// Appends a partial entry to `out`; the next byte starts a new line.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.entry.is_empty() {
            out.append(&mut self.entry);
            out.push(b'\n');
        }
        self.continues = false;
    }

    /// Appends the partial entry to `out`, or a header.
    fn begin(&mut self, now: Time, out: &mut Vec<u8>) {
        if self.entry.is_empty() {
            out.extend_from_slice(&self.header(now));
        } else {
            out.append(&mut self.entry);
        }
    }

    fn header(&self, now: Time) -> [u8; HEADER_BYTES] {
        let mut header = [b' '; HEADER_BYTES];
        header[..TIME_BYTES].copy_from_slice(&now.0);
        header[TIME_BYTES + 1..][..3].copy_from_slice(&self.stream);
        if self.continues {
            header[HEADER_BYTES - 1] = b'+';
        }
        header
    }
}
