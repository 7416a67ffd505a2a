//! Lines as GitLab Runner writes them: with the time, the stream, and whether they go on.

use std::io::Write as _;

use jiff::Timestamp;

use super::{Source, Stream};

/// The length of a time, `2026-05-05T12:00:00.000000Z`.
pub(super) const TIME_BYTES: usize = 27;

/// The length of what stands before each message: the time, a space, two hexadecimal digits for the
/// stream, `O` or `E`, and a space or `+`.
pub(super) const HEADER_BYTES: usize = TIME_BYTES + 5;

/// A line without end is written in pieces when it is longer.
const LINE_BYTES: usize = 8 * 1024;

/// A time as log lines have it: in UTC, to the microsecond.
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
        // The years before 0 have a sign and two digits more.
        let time = time.max(Timestamp::UNIX_EPOCH);
        write!(&mut text[..], "{time:.6}").expect("the years to 9999 have four digits");
        Time(text)
    }
}

/// Writes one stream as lines with a header.
///
/// What ends with a newline is an entry. What does not waits for its end, until it is longer than
/// 8 KiB or was written with a carriage return in it, as progress bars are; then it is an entry
/// too, and the next one has a `+`, which says that it belongs to the same line.
pub struct Stamper {
    stream: [u8; 3],
    /// A begun entry with its header; empty if there is none.
    entry: Vec<u8>,
    goes_on: bool,
}

impl Stamper {
    /// Begins a stream with the number, below 256, that lines show.
    pub fn new(number: u8, stream: Stream) -> Self {
        let digit = |digit| b"0123456789abcdef"[usize::from(digit)];
        let kind = match stream {
            Stream::Out => b'O',
            Stream::Err => b'E',
        };
        Stamper {
            stream: [digit(number >> 4), digit(number & 15), kind],
            entry: Vec::new(),
            goes_on: false,
        }
    }

    /// Begins the stream of a writer.
    pub fn of(source: Source, stream: Stream) -> Self {
        let number = match source {
            Source::Runner => 0,
            Source::Step => 1,
        };
        Self::new(number, stream)
    }

    /// Takes what comes next and adds the entries it makes to `out`, none of them cut.
    pub fn write(&mut self, mut bytes: &[u8], now: Time, out: &mut Vec<u8>) {
        while let Some(newline) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = bytes.split_at(newline + 1);
            self.begin(now, out);
            out.extend_from_slice(line);
            self.goes_on = false;
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
            self.goes_on = true;
        } else {
            if self.entry.is_empty() {
                self.entry.extend_from_slice(&self.header(now));
            }
            self.entry.extend_from_slice(bytes);
        }
    }

    /// Adds to `out` what waits for its end; what comes next is a new line.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.entry.is_empty() {
            out.append(&mut self.entry);
            out.push(b'\n');
        }
        self.goes_on = false;
    }

    /// Adds to `out` what there is of an entry: at least a header.
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
        if self.goes_on {
            header[HEADER_BYTES - 1] = b'+';
        }
        header
    }
}
