//! Messages of ttrpc, as far as unary calls need them.
//!
//! A message consists of the length of the payload and the number of the stream, 4 bytes each, the kind and
//! the flags, a byte each, and the payload.

/// Maximum payload of a ttrpc message.
pub const MAX_PAYLOAD_BYTES: usize = 4 << 20;

const HEADER_BYTES: usize = 10;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Request,
    Response,
    /// Part of a stream; NRI has no streams.
    Data,
    /// Any other kind; a later version of ttrpc may define it.
    Unknown,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtrpcMessage {
    /// Number that a request and its response share.
    pub stream: u32,
    pub kind: MessageKind,
    pub payload: MessagePayload,
}

/// Payload of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePayload {
    Bytes(Vec<u8>),
    /// A skipped payload of this length, more than [`MAX_PAYLOAD_BYTES`].
    Oversized(usize),
}

/// Reads the messages of a connection. It buffers one message of at most [`MAX_PAYLOAD_BYTES`], and allocates
/// the memory as data arrives.
#[derive(Debug, Default)]
pub struct MessageReader {
    header: [u8; HEADER_BYTES],
    header_length: usize,
    payload: Vec<u8>,
    /// Number of payload bytes of the current message that have not arrived.
    left: usize,
}

impl MessageReader {
    /// Passes each complete message to `deliver`.
    pub fn feed(&mut self, mut bytes: &[u8], mut deliver: impl FnMut(TtrpcMessage)) {
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

    fn take(&mut self) -> TtrpcMessage {
        let [.., a, b, c, d, kind, _flags] = self.header;
        let payload = match self.length() {
            length if length > MAX_PAYLOAD_BYTES => MessagePayload::Oversized(length),
            _ => MessagePayload::Bytes(std::mem::take(&mut self.payload)),
        };
        self.header_length = 0;
        self.payload = Vec::new();
        let kind = match kind {
            1 => MessageKind::Request,
            2 => MessageKind::Response,
            3 => MessageKind::Data,
            _ => MessageKind::Unknown,
        };
        TtrpcMessage { stream: u32::from_be_bytes([a, b, c, d]), kind, payload }
    }
}

/// Encodes a request or response.
pub fn encode(stream: u32, kind: MessageKind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("callers keep to MAX_PAYLOAD_BYTES");
    let kind = match kind {
        MessageKind::Request => 1,
        MessageKind::Response => 2,
        MessageKind::Data => 3,
        MessageKind::Unknown => 0,
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

    fn read(bytes: &[u8], size: usize) -> Vec<TtrpcMessage> {
        let mut messages = Vec::new();
        let mut reader = MessageReader::default();
        for part in bytes.chunks(size) {
            reader.feed(part, |message| messages.push(message));
        }
        messages
    }

    #[test]
    fn messages_are_parsed_however_bytes_arrive() {
        let bytes = [
            encode(1, MessageKind::Request, b"payload"),
            encode(3, MessageKind::Response, b""),
            encode(5, MessageKind::Data, &[1; 5000]),
        ]
        .concat();
        for size in [1, 3, 10, 11, 100_000] {
            let messages = read(&bytes, size);
            let found: Vec<_> = messages.iter().map(|m| (m.stream, m.kind)).collect();
            assert_eq!(
                found,
                [(1, MessageKind::Request), (3, MessageKind::Response), (5, MessageKind::Data)]
            );
            assert_eq!(messages[0].payload, MessagePayload::Bytes(b"payload".to_vec()));
            assert_eq!(messages[1].payload, MessagePayload::Bytes(Vec::new()));
        }
    }

    #[test]
    fn oversized_message_is_skipped_without_memory() {
        let length = MAX_PAYLOAD_BYTES + 1;
        let mut bytes = encode(7, MessageKind::Request, &vec![0; length]);
        bytes.extend(encode(9, MessageKind::Request, b"next"));
        let mut reader = MessageReader::default();
        let mut messages = Vec::new();
        for part in bytes.chunks(1 << 16) {
            reader.feed(part, |message| messages.push(message));
            assert!(reader.payload.capacity() < 100);
        }
        let payloads: Vec<_> = messages.into_iter().map(|m| (m.stream, m.payload)).collect();
        let next = MessagePayload::Bytes(b"next".to_vec());
        assert_eq!(payloads, [(7, MessagePayload::Oversized(length)), (9, next)]);
    }

    #[test]
    fn claimed_length_allocates_no_memory() {
        let mut reader = MessageReader::default();
        let length = u32::try_from(MAX_PAYLOAD_BYTES).unwrap().to_be_bytes();
        reader.feed(&[&length[..], &[0, 0, 0, 1, 1, 0, 9]].concat(), |_| unreachable!());
        assert!(reader.payload.capacity() < 100);
    }

    #[test]
    fn unknown_kinds_are_messages_too() {
        let messages = read(&[0, 0, 0, 0, 0, 0, 0, 1, 99, 255], 4);
        assert_eq!(messages[0].kind, MessageKind::Unknown);
    }
}
