use super::Stream;
use super::stamp::{HEADER_BYTES, TIME_BYTES};

/// Splits a log written by [`Stamper`](super::Stamper) into streams: removes headers and joins lines.
///
/// Lines without header go to standard output unchanged: not every step runner writes headers. The
/// newline of an entry is held back until the next entry of its stream, which may continue the line.
#[derive(Debug, Default)]
pub struct Demux {
    line: Line,
    /// Start of a line, as long as it may be a header.
    head: Vec<u8>,
    out: Option<Number>,
    err: Option<Number>,
}

/// The two hexadecimal digits of a stream.
type Number = [u8; 2];

/// Parser state within a line.
#[derive(Clone, Copy, Debug, Default)]
enum Line {
    #[default]
    Head,
    Message(Stream, Number),
    /// After the head of a line without a header.
    Bare,
}

impl Demux {
    /// Returns a demultiplexer at the start of a log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses bytes, split anywhere, and passes the messages in them to `take`, in order.
    pub fn write(&mut self, mut bytes: &[u8], mut take: impl FnMut(Stream, &[u8])) {
        while !bytes.is_empty() {
            let newline = bytes.iter().position(|&byte| byte == b'\n');
            let end = newline.map_or(bytes.len(), |newline| newline + 1);
            match self.line {
                Line::Head => {
                    let end = end.min(HEADER_BYTES - self.head.len());
                    self.head.extend_from_slice(&bytes[..end]);
                    bytes = &bytes[end..];
                    if self.head.len() == HEADER_BYTES || self.head.ends_with(b"\n") {
                        self.begin(&mut take);
                    }
                }
                Line::Message(stream, number) => {
                    let message = &bytes[..newline.unwrap_or(end)];
                    if !message.is_empty() {
                        take(stream, message);
                    }
                    bytes = &bytes[end..];
                    if newline.is_some() {
                        *self.ended(stream) = Some(number);
                        self.line = Line::Head;
                    }
                }
                Line::Bare => {
                    take(Stream::Out, &bytes[..end]);
                    bytes = &bytes[end..];
                    if newline.is_some() {
                        self.line = Line::Head;
                    }
                }
            }
        }
    }

    /// Passes what was held back to `take`.
    pub fn finish(&mut self, mut take: impl FnMut(Stream, &[u8])) {
        if !self.head.is_empty() {
            self.begin(&mut take);
        }
        for stream in [Stream::Out, Stream::Err] {
            if self.ended(stream).take().is_some() {
                take(stream, b"\n");
            }
        }
        self.line = Line::Head;
    }

    /// Starts a line whose head is complete.
    fn begin(&mut self, take: &mut impl FnMut(Stream, &[u8])) {
        let header = header(&self.head);
        let (stream, continued) = match header {
            Some((stream, number, continues)) => (stream, continues.then_some(number)),
            None => (Stream::Out, None),
        };
        let ended = self.ended(stream).take();
        if ended.is_some() && ended != continued {
            take(stream, b"\n");
        }
        self.line = match header {
            Some((stream, number, _)) => Line::Message(stream, number),
            None => {
                take(stream, &self.head);
                if self.head.ends_with(b"\n") { Line::Head } else { Line::Bare }
            }
        };
        self.head.clear();
    }

    fn ended(&mut self, stream: Stream) -> &mut Option<Number> {
        match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        }
    }
}

/// Parses a header: the stream, its number, and whether it continues the previous line.
fn header(head: &[u8]) -> Option<(Stream, Number, bool)> {
    let (time, rest) = head.split_at_checked(TIME_BYTES)?;
    let shape = b"0000-00-00T00:00:00.000000Z";
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        _ => byte == shape,
    };
    let &[b' ', high, low, kind, flag] = rest else { return None };
    let stream = match kind {
        b'O' => Stream::Out,
        b'E' => Stream::Err,
        _ => return None,
    };
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let known = is_digit(high) && is_digit(low) && matches!(flag, b' ' | b'+');
    (known && time.iter().zip(shape).all(fits)).then_some((stream, [high, low], flag == b'+'))
}

#[cfg(test)]
mod tests;
