//! Log lines in GitLab Runner's format: time, stream and continuation flag. Writes and reads them.

use std::io::Write as _;

use jiff::Timestamp;

use super::{LogStream, OutputSource};

/// Length of a timestamp such as `2026-05-05T12:00:00.000000Z`.
const TIME_BYTES: usize = 27;

/// Length of the header of a line: the time, a space, two hexadecimal digits for the stream, `O` or `E`,
/// and a space or `+`.
const HEADER_BYTES: usize = TIME_BYTES + 5;

/// Maximum length of a partial line that is held back. A longer one is written before its end.
const LINE_BYTES: usize = 8 * 1024;

/// A timestamp of a log line: UTC, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogTime([u8; TIME_BYTES]);

impl LogTime {
    /// Returns the time now.
    pub fn now() -> Self {
        Timestamp::now().into()
    }
}

impl From<Timestamp> for LogTime {
    fn from(time: Timestamp) -> Self {
        let mut text = [0; TIME_BYTES];
        // Years before 0 have more digits, so times before 1970 are shown as 1970.
        let time = time.max(Timestamp::UNIX_EPOCH);
        write!(&mut text[..], "{time:.6}").expect("the years to 9999 have four digits");
        LogTime(text)
    }
}

/// A formatter of one stream as lines with a header.
///
/// A line that ends with a newline is an entry. A partial line is held back until it is longer than 8 KiB
/// or contains a carriage return, as progress bars do; then it is an entry too, and the next one has a
/// `+`, which marks a continuation of the line.
pub struct LogStamper {
    stream: [u8; 3],
    /// The held-back partial line with its header, or empty.
    entry: Vec<u8>,
    continues: bool,
}

impl LogStamper {
    /// Returns a stamper for a stream with this number.
    pub fn new(number: u8, stream: LogStream) -> Self {
        let digit = |digit| b"0123456789abcdef"[usize::from(digit)];
        let kind = match stream {
            LogStream::Out => b'O',
            LogStream::Err => b'E',
        };
        LogStamper {
            stream: [digit(number >> 4), digit(number & 15), kind],
            entry: Vec::new(),
            continues: false,
        }
    }

    /// Returns a stamper for the stream of a source.
    pub fn of(source: OutputSource, stream: LogStream) -> Self {
        let number = match source {
            OutputSource::Runner => 0,
            OutputSource::Step => 1,
        };
        Self::new(number, stream)
    }

    /// Reads bytes and appends complete entries to `out`.
    pub fn write(&mut self, mut bytes: &[u8], now: LogTime, out: &mut Vec<u8>) {
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

    /// Appends the held-back partial line to `out` as an entry; the next byte starts a new line.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.entry.is_empty() {
            out.append(&mut self.entry);
            out.push(b'\n');
        }
        self.continues = false;
    }

    /// Appends the held-back partial line to `out`, or else a new header.
    fn begin(&mut self, now: LogTime, out: &mut Vec<u8>) {
        if self.entry.is_empty() {
            out.extend_from_slice(&self.header(now));
        } else {
            out.append(&mut self.entry);
        }
    }

    fn header(&self, now: LogTime) -> [u8; HEADER_BYTES] {
        let mut header = [b' '; HEADER_BYTES];
        header[..TIME_BYTES].copy_from_slice(&now.0);
        header[TIME_BYTES + 1..][..3].copy_from_slice(&self.stream);
        if self.continues {
            header[HEADER_BYTES - 1] = b'+';
        }
        header
    }
}

/// A parser that splits a log written by [`LogStamper`] into streams: it removes headers and joins lines.
///
/// Lines without header go to standard output unchanged: not every step runner writes headers. The
/// newline of an entry is held back until the next entry of its stream, which may continue the line.
#[derive(Debug, Default)]
pub struct LogDemux {
    line: DemuxState,
    /// The first bytes of a line, until they are known to be a header or not.
    head: Vec<u8>,
    out: Option<StreamNumber>,
    err: Option<StreamNumber>,
}

/// The two hexadecimal digits of a stream in the header of a line.
type StreamNumber = [u8; 2];

/// Parser state within a line.
#[derive(Clone, Copy, Debug, Default)]
enum DemuxState {
    #[default]
    Head,
    Message(LogStream, StreamNumber),
    /// In a line without a header, after its first bytes.
    Bare,
}

impl LogDemux {
    /// Parses bytes, which may be split anywhere, and passes the messages in them to `take`, in
    /// order.
    pub fn write(&mut self, mut bytes: &[u8], mut take: impl FnMut(LogStream, &[u8])) {
        while !bytes.is_empty() {
            let newline = bytes.iter().position(|&byte| byte == b'\n');
            let end = newline.map_or(bytes.len(), |newline| newline + 1);
            match self.line {
                DemuxState::Head => {
                    let end = end.min(HEADER_BYTES - self.head.len());
                    self.head.extend_from_slice(&bytes[..end]);
                    bytes = &bytes[end..];
                    if self.head.len() == HEADER_BYTES || self.head.ends_with(b"\n") {
                        self.begin(&mut take);
                    }
                }
                DemuxState::Message(stream, number) => {
                    let message = &bytes[..newline.unwrap_or(end)];
                    if !message.is_empty() {
                        take(stream, message);
                    }
                    bytes = &bytes[end..];
                    if newline.is_some() {
                        *self.end_number(stream) = Some(number);
                        self.line = DemuxState::Head;
                    }
                }
                DemuxState::Bare => {
                    take(LogStream::Out, &bytes[..end]);
                    bytes = &bytes[end..];
                    if newline.is_some() {
                        self.line = DemuxState::Head;
                    }
                }
            }
        }
    }

    /// Passes held-back bytes to `take`.
    pub fn finish(&mut self, mut take: impl FnMut(LogStream, &[u8])) {
        if !self.head.is_empty() {
            self.begin(&mut take);
        }
        for stream in [LogStream::Out, LogStream::Err] {
            if self.end_number(stream).take().is_some() {
                take(stream, b"\n");
            }
        }
        self.line = DemuxState::Head;
    }

    /// Handles the first bytes of a line, once they are known to be a header or not.
    fn begin(&mut self, take: &mut impl FnMut(LogStream, &[u8])) {
        let header = header(&self.head);
        let (stream, continued) = match header {
            Some((stream, number, continues)) => (stream, continues.then_some(number)),
            None => (LogStream::Out, None),
        };
        let ended = self.end_number(stream).take();
        if ended.is_some() && ended != continued {
            take(stream, b"\n");
        }
        self.line = match header {
            Some((stream, number, _)) => DemuxState::Message(stream, number),
            None => {
                take(stream, &self.head);
                if self.head.ends_with(b"\n") { DemuxState::Head } else { DemuxState::Bare }
            }
        };
        self.head.clear();
    }

    fn end_number(&mut self, stream: LogStream) -> &mut Option<StreamNumber> {
        match stream {
            LogStream::Out => &mut self.out,
            LogStream::Err => &mut self.err,
        }
    }
}

/// Parses a header: the stream, its number, and whether it continues the previous line.
fn header(head: &[u8]) -> Option<(LogStream, StreamNumber, bool)> {
    let (time, rest) = head.split_at_checked(TIME_BYTES)?;
    let shape = b"0000-00-00T00:00:00.000000Z";
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        _ => byte == shape,
    };
    let &[b' ', high, low, kind, flag] = rest else { return None };
    let stream = match kind {
        b'O' => LogStream::Out,
        b'E' => LogStream::Err,
        _ => return None,
    };
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let known = is_digit(high) && is_digit(low) && matches!(flag, b' ' | b'+');
    (known && time.iter().zip(shape).all(fits)).then_some((stream, [high, low], flag == b'+'))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    const HEADER: &str = "2026-05-05T12:00:00.000000Z";

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ExpectedLog {
        Stamped(String),
        Joined { stdout: String, stderr: String },
    }

    #[derive(Deserialize)]
    struct StampVector {
        id: String,
        chunks: Vec<String>,
        #[serde(default)]
        stream_id: u8,
        expected: ExpectedLog,
    }

    fn demux<C: AsRef<[u8]>>(chunks: impl IntoIterator<Item = C>) -> [Vec<u8>; 2] {
        let mut demux = LogDemux::default();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut take = |stream, bytes: &[u8]| match stream {
            LogStream::Out => out.extend_from_slice(bytes),
            LogStream::Err => err.extend_from_slice(bytes),
        };
        for chunk in chunks {
            demux.write(chunk.as_ref(), &mut take);
        }
        demux.finish(take);
        [out, err]
    }

    fn time() -> LogTime {
        HEADER.parse::<Timestamp>().unwrap().into()
    }

    fn stamp<C: AsRef<[u8]>>(number: u8, chunks: impl IntoIterator<Item = C>) -> Vec<u8> {
        let mut stamper = LogStamper::new(number, LogStream::Out);
        let mut out = Vec::new();
        for chunk in chunks {
            stamper.write(chunk.as_ref(), time(), &mut out);
        }
        stamper.finish(&mut out);
        out
    }

    #[test]
    fn recorded_stamped_lines_match() {
        let vectors = include_str!("../../tests/data/timestamps.jsonl").lines();
        for vector in vectors.map(|line| serde_json::from_str::<StampVector>(line).unwrap()) {
            match vector.expected {
                ExpectedLog::Stamped(expected) => {
                    let stamped =
                        String::from_utf8(stamp(vector.stream_id, &vector.chunks)).unwrap();
                    assert_eq!(stamped, expected.replace("$TS", HEADER), "{}", vector.id);
                }
                ExpectedLog::Joined { stdout, stderr } => {
                    let joined = demux(&vector.chunks);
                    assert_eq!(joined, [stdout, stderr].map(String::into_bytes), "{}", vector.id);
                }
            }
        }
    }

    #[test]
    fn timestamp_always_has_six_fractional_digits() {
        for (micros, text) in [
            (-1, "1970-01-01T00:00:00.000000Z"),
            (1, "1970-01-01T00:00:00.000001Z"),
            (1_709_210_096_789_000, "2024-02-29T12:34:56.789000Z"),
            (253_402_207_199_999_999, "9999-12-30T21:59:59.999999Z"),
        ] {
            let time = LogTime::from(Timestamp::from_microsecond(micros).unwrap());
            let mut out = Vec::new();
            LogStamper::new(255, LogStream::Err).write(b"\n", time, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{text} ffE \n"));
        }
    }

    #[test]
    fn entry_has_its_start_time() {
        let mut stamper = LogStamper::of(OutputSource::Step, LogStream::Out);
        let mut out = Vec::new();
        stamper.write(b"a", time(), &mut out);
        assert_eq!(out, b"");
        stamper.write(b"b\nc\n", Timestamp::UNIX_EPOCH.into(), &mut out);
        let expected = format!("{HEADER} 01O ab\n1970-01-01T00:00:00.000000Z 01O c\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn unterminated_line_is_written_at_8_kib() {
        let mut stamper = LogStamper::new(1, LogStream::Out);
        let mut out = Vec::new();
        for _ in 0..4096 {
            stamper.write(b"xy", time(), &mut out);
        }
        assert_eq!(out, b"");
        stamper.write(b"z", time(), &mut out);
        assert_eq!(out.len(), 32 + 8192 + 2);
        stamper.write(b"end\nnext\n", time(), &mut out);
        let rest = format!("{HEADER} 01O+end\n{HEADER} 01O next\n");
        assert_eq!(&out[32 + 8192 + 2..], rest.as_bytes());
    }

    #[test]
    fn end_of_a_command_ends_its_line() {
        let mut stamper = LogStamper::new(1, LogStream::Out);
        let mut out = Vec::new();
        stamper.write(b"10%\r", time(), &mut out);
        stamper.finish(&mut out);
        stamper.write(b"next\n", time(), &mut out);
        assert_eq!(out, format!("{HEADER} 01O 10%\r\n{HEADER} 01O next\n").into_bytes());
    }

    #[test]
    fn lines_without_a_header_pass_unchanged() {
        for text in [
            "",
            "a",
            "\n\n",
            "plain\nlines without an end",
            "2026-05-05T12:00:00.000000Z 01X not a stream\n",
            "2026-05-05T12:00:00.000000Z 01O\n",
            "2026-05-05 12:00:00.000000Z 01O a date of another kind\n",
        ] {
            assert_eq!(demux([text]), [text.as_bytes(), b""], "{text:?}");
        }
        let mixed = format!("{HEADER} 01O a\nbare\n{HEADER} 01O+b\n");
        assert_eq!(demux([mixed]), ["a\nbare\nb\n".as_bytes(), b""]);
    }

    #[test]
    fn another_stream_does_not_continue_a_line() {
        let text = format!("{HEADER} 00O a\n{HEADER} 01O+b\n{HEADER} 01E c\n{HEADER} 01O+d\n");
        assert_eq!(demux([text]), ["a\nbd\n".as_bytes(), b"c\n"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn stamped_output_is_restored(
            chunks in proptest::collection::vec("[ab\r\n]{0,6}|x{8190,8195}|[^a]{0,3}", 0..9),
            size in 1_usize..80,
        ) {
            let stamped = stamp(1, &chunks);
            let mut whole = chunks.concat().into_bytes();
            if !whole.is_empty() && !whole.ends_with(b"\n") {
                whole.push(b'\n');
            }
            prop_assert_eq!(&demux([&stamped]), &[whole, Vec::new()]);
            prop_assert_eq!(demux(stamped.chunks(size)), demux([&stamped]));
        }
    }
}
