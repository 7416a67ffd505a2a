//! Splits the bytes of a client into HTTP/2 frames (RFC 9113, sections 3.4 and 4.1).

/// The connection preface of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD_BYTES: usize = 9;

/// Kinds of HTTP/2 frames, as far as callers distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Headers,
    Continuation,
    /// The client closes the connection.
    GoAway,
    Other,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    pub kind: FrameKind,
    pub flags: u8,
    /// Length of the payload in bytes.
    pub length: u32,
}

/// A parser of the frames in the bytes of a client, which may be split anywhere. It finds no frames in bytes of other
/// protocols.
///
/// Buffers at most the header of a frame; payloads are neither copied nor parsed.
#[derive(Debug)]
pub struct FrameReader {
    at: FramePosition,
}

#[derive(Clone, Copy, Debug)]
enum FramePosition {
    /// In the connection preface, after this number of its bytes.
    Preface(usize),
    /// In a frame header, after this number of its bytes, which are buffered.
    Head(usize, [u8; HEAD_BYTES]),
    /// In the payload of a frame, after this number of its bytes.
    Payload(u32, FrameHead),
    Foreign,
}

impl FrameReader {
    /// Returns a parser at the start of a connection.
    pub(crate) fn new() -> Self {
        FrameReader { at: FramePosition::Preface(0) }
    }

    /// Parses bytes, and passes the payloads in them to `take` in pieces: the frame header, the offset of
    /// the piece in the payload, and the piece, which may be changed. The first piece of each payload is
    /// empty.
    pub(crate) fn read(
        &mut self,
        mut bytes: &mut [u8],
        mut take: impl FnMut(FrameHead, u32, &mut [u8]),
    ) {
        while !bytes.is_empty() {
            match self.at {
                FramePosition::Preface(count) => {
                    let fresh = bytes.len().min(PREFACE.len() - count);
                    let (preface, rest) = bytes.split_at_mut(fresh);
                    bytes = rest;
                    let count = count + fresh;
                    self.at = match PREFACE[count - fresh..count] == *preface {
                        false => FramePosition::Foreign,
                        true if count == PREFACE.len() => FramePosition::Head(0, [0; HEAD_BYTES]),
                        true => FramePosition::Preface(count),
                    };
                }
                FramePosition::Head(count, mut head) => {
                    let fresh = bytes.len().min(HEAD_BYTES - count);
                    let (part, rest) = bytes.split_at_mut(fresh);
                    bytes = rest;
                    head[count..count + fresh].copy_from_slice(part);
                    let count = count + fresh;
                    self.at = FramePosition::Head(count, head);
                    if count == HEAD_BYTES {
                        let head = FrameHead::of(head);
                        take(head, 0, &mut []);
                        self.at = FramePosition::payload(0, head);
                    }
                }
                FramePosition::Payload(offset, head) => {
                    let left = usize::try_from(head.length - offset).unwrap_or(usize::MAX);
                    let (piece, rest) = bytes.split_at_mut(left.min(bytes.len()));
                    bytes = rest;
                    take(head, offset, piece);
                    // Not longer than the payload, whose length has 24 bits.
                    let offset = offset + u32::try_from(piece.len()).unwrap_or(u32::MAX);
                    self.at = FramePosition::payload(offset, head);
                }
                FramePosition::Foreign => return,
            }
        }
    }
}

impl FramePosition {
    fn payload(offset: u32, head: FrameHead) -> Self {
        if offset == head.length {
            FramePosition::Head(0, [0; HEAD_BYTES])
        } else {
            FramePosition::Payload(offset, head)
        }
    }
}

impl FrameHead {
    fn of(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, ..] = bytes;
        let kind = match kind {
            1 => FrameKind::Headers,
            7 => FrameKind::GoAway,
            9 => FrameKind::Continuation,
            _ => FrameKind::Other,
        };
        FrameHead { kind, flags, length: u32::from_be_bytes([0, a, b, c]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the payloads found in bytes that are read in pieces of `size`.
    fn payloads(bytes: &[u8], size: usize) -> Vec<(FrameKind, u8, Vec<u8>)> {
        let mut frames = FrameReader::new();
        let mut found: Vec<(FrameKind, u8, Vec<u8>)> = Vec::new();
        let mut bytes = bytes.to_vec();
        for piece in bytes.chunks_mut(size) {
            frames.read(piece, |head, offset, piece| {
                if piece.is_empty() {
                    assert_eq!(offset, 0);
                    found.push((head.kind, head.flags, Vec::new()));
                }
                let payload = &mut found.last_mut().unwrap().2;
                assert_eq!(payload.len(), offset as usize);
                payload.extend_from_slice(piece);
            });
        }
        found
    }

    #[test]
    fn frames_are_found_however_bytes_arrive() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(b"\0\0\0\x04\0\0\0\0\0");
        bytes.extend(b"\0\0\x03\x01\x25\0\0\0\x01abc");
        bytes.extend(b"\0\x01\0\0\x01\0\0\0\x01");
        bytes.extend([7; 256]);
        bytes.extend(b"\0\0\0\x09\x04\0\0\0\x01");
        bytes.extend(b"\0\0\x02\x07\0\0\0\0\0xy");
        let expected = [
            (FrameKind::Other, 0, Vec::new()),
            (FrameKind::Headers, 0x25, b"abc".to_vec()),
            (FrameKind::Other, 1, vec![7; 256]),
            (FrameKind::Continuation, 4, Vec::new()),
            (FrameKind::GoAway, 0, b"xy".to_vec()),
        ];
        for size in 1..=bytes.len() {
            assert_eq!(payloads(&bytes, size), expected, "{size}");
        }
    }

    #[test]
    fn non_http2_data_has_no_frames() {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n\0\0\0\x07\0\0\0\0\0"[..], b"PRI * HTTP/1.0", b""] {
            assert_eq!(payloads(bytes, 3), []);
        }
    }
}
