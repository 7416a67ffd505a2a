//! Messages of ttrpc, as far as unary calls need them.
//!
//! A message is the length of its payload and the number of its stream, both of four bytes, its kind, a
//! byte of flags, and the payload.

/// The largest payload that ttrpc allows.
pub const MAX_PAYLOAD_BYTES: usize = 4 << 20;

const HEADER_BYTES: usize = 10;

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    Request,
    Response,
    /// Part of a stream, which NRI does not have.
    Data,
    /// A kind that later versions may have.
    Unknown,
}

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number that a request and its response share.
    pub stream: u32,
    pub kind: Kind,
    pub payload: Payload,
}

/// What a message holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    Bytes(Vec<u8>),
    /// More than [`MAX_PAYLOAD_BYTES`], which were skipped.
    Oversized(usize),
}

/// Reads the messages of a connection. It holds one of them at a time, of at most
/// [`MAX_PAYLOAD_BYTES`], in memory that grows as it comes.
#[derive(Debug, Default)]
pub struct MessageReader {
    header: [u8; HEADER_BYTES],
    header_length: usize,
    payload: Vec<u8>,
    /// What of the payload is still to come.
    left: usize,
}

impl MessageReader {
    /// Passes on each message that is complete.
    pub fn feed(&mut self, mut bytes: &[u8], mut deliver: impl FnMut(Message)) {
        while !bytes.is_empty() {
            if self.header_length < HEADER_BYTES {
                bytes = self.feed_header(bytes);
            } else {
                let (part, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= part.len();
                if self.length() <= MAX_PAYLOAD_BYTES {
                    self.payload.extend(part);
                }
                bytes = rest;
            }
            if self.header_length == HEADER_BYTES && self.left == 0 {
                deliver(self.take());
            }
        }
    }

    fn feed_header<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (part, rest) = bytes.split_at((HEADER_BYTES - self.header_length).min(bytes.len()));
        self.header[self.header_length..][..part.len()].copy_from_slice(part);
        self.header_length += part.len();
        if self.header_length == HEADER_BYTES {
            self.left = self.length();
        }
        rest
    }

    fn length(&self) -> usize {
        let [a, b, c, d, ..] = self.header;
        u32::from_be_bytes([a, b, c, d]) as usize
    }

    fn take(&mut self) -> Message {
        let [.., a, b, c, d, kind, _flags] = self.header;
        let payload = match self.length() {
            length if length > MAX_PAYLOAD_BYTES => Payload::Oversized(length),
            _ => Payload::Bytes(std::mem::take(&mut self.payload)),
        };
        self.header_length = 0;
        self.payload = Vec::new();
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Response,
            3 => Kind::Data,
            _ => Kind::Unknown,
        };
        Message { stream: u32::from_be_bytes([a, b, c, d]), kind, payload }
    }
}

/// Returns a request or response as it is sent.
pub fn encode(stream: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("callers keep to MAX_PAYLOAD_BYTES");
    let kind = match kind {
        Kind::Request => 1,
        Kind::Response => 2,
        Kind::Data => 3,
        Kind::Unknown => 0,
    };
    let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
    message.extend(length.to_be_bytes());
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(payload);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], size: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut reader = MessageReader::default();
        for part in bytes.chunks(size) {
            reader.feed(part, |message| messages.push(message));
        }
        messages
    }

    #[test]
    fn messages_are_read_however_the_bytes_come() {
        let bytes = [
            encode(1, Kind::Request, b"payload"),
            encode(3, Kind::Response, b""),
            encode(5, Kind::Data, &[1; 5000]),
        ]
        .concat();
        for size in [1, 3, 10, 11, 100_000] {
            let messages = read(&bytes, size);
            let found: Vec<_> = messages.iter().map(|m| (m.stream, m.kind)).collect();
            assert_eq!(found, [(1, Kind::Request), (3, Kind::Response), (5, Kind::Data)]);
            assert_eq!(messages[0].payload, Payload::Bytes(b"payload".to_vec()));
            assert_eq!(messages[1].payload, Payload::Bytes(Vec::new()));
        }
    }

    #[test]
    fn an_oversized_message_is_skipped_without_memory_and_the_next_one_read() {
        let length = MAX_PAYLOAD_BYTES + 1;
        let mut bytes = encode(7, Kind::Request, &vec![0; length]);
        bytes.extend(encode(9, Kind::Request, b"next"));
        let mut reader = MessageReader::default();
        let mut messages = Vec::new();
        for part in bytes.chunks(1 << 16) {
            reader.feed(part, |message| messages.push(message));
            assert!(reader.payload.capacity() < 100);
        }
        let payloads: Vec<_> = messages.into_iter().map(|m| (m.stream, m.payload)).collect();
        let next = Payload::Bytes(b"next".to_vec());
        assert_eq!(payloads, [(7, Payload::Oversized(length)), (9, next)]);
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut reader = MessageReader::default();
        let length = u32::try_from(MAX_PAYLOAD_BYTES).unwrap().to_be_bytes();
        reader.feed(&[&length[..], &[0, 0, 0, 1, 1, 0, 9]].concat(), |_| unreachable!());
        assert!(reader.payload.capacity() < 100);
    }

    #[test]
    fn unknown_kinds_are_messages_too() {
        let messages = read(&[0, 0, 0, 0, 0, 0, 0, 1, 99, 255], 4);
        assert_eq!(messages[0].kind, Kind::Unknown);
    }
}
