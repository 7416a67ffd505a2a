//! Where the frames of a client begin and end (RFC 9113, sections 3.4 and 4.1).

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD_BYTES: usize = 9;

/// Kinds of frames that somebody here looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Headers,
    Continuation,
    /// The client ends the connection.
    GoAway,
    Other,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub kind: Kind,
    pub flags: u8,
    /// Length of the payload in bytes.
    pub length: u32,
}

/// Finds the frames in the bytes of a client, which may be split anywhere. What is no HTTP/2 has none.
///
/// It takes no memory for what it reads, and no time for payloads that nobody looks at.
#[derive(Debug)]
pub struct Frames {
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// After so many bytes of the preface.
    Preface(usize),
    /// After so many bytes of a head.
    Head(usize, [u8; HEAD_BYTES]),
    /// After so many bytes of a payload.
    Payload(u32, Head),
    Foreign,
}

impl Frames {
    /// Returns a reader at the begin of a connection.
    pub(crate) fn new() -> Self {
        Frames { at: At::Preface(0) }
    }

    /// Reads bytes, and passes the payloads in them to `take`, in pieces: the head, where in the payload the
    /// piece is, and the piece, which may be changed. The first piece of each payload is empty.
    pub(crate) fn read(
        &mut self,
        mut bytes: &mut [u8],
        mut take: impl FnMut(Head, u32, &mut [u8]),
    ) {
        while !bytes.is_empty() {
            match self.at {
                At::Preface(count) => {
                    let fresh = bytes.len().min(PREFACE.len() - count);
                    let (preface, rest) = bytes.split_at_mut(fresh);
                    bytes = rest;
                    let count = count + fresh;
                    self.at = match PREFACE[count - fresh..count] == *preface {
                        false => At::Foreign,
                        true if count == PREFACE.len() => At::Head(0, [0; HEAD_BYTES]),
                        true => At::Preface(count),
                    };
                }
                At::Head(count, mut head) => {
                    let fresh = bytes.len().min(HEAD_BYTES - count);
                    let (part, rest) = bytes.split_at_mut(fresh);
                    bytes = rest;
                    head[count..count + fresh].copy_from_slice(part);
                    let count = count + fresh;
                    self.at = At::Head(count, head);
                    if count == HEAD_BYTES {
                        let head = Head::of(head);
                        take(head, 0, &mut []);
                        self.at = At::payload(0, head);
                    }
                }
                At::Payload(offset, head) => {
                    let left = usize::try_from(head.length - offset).unwrap_or(usize::MAX);
                    let (piece, rest) = bytes.split_at_mut(left.min(bytes.len()));
                    bytes = rest;
                    take(head, offset, piece);
                    // No longer than the payload, whose length has 24 bits.
                    let offset = offset + u32::try_from(piece.len()).unwrap_or(u32::MAX);
                    self.at = At::payload(offset, head);
                }
                At::Foreign => return,
            }
        }
    }
}

impl At {
    fn payload(offset: u32, head: Head) -> Self {
        if offset == head.length { At::Head(0, [0; HEAD_BYTES]) } else { At::Payload(offset, head) }
    }
}

impl Head {
    fn of(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, ..] = bytes;
        let kind = match kind {
            1 => Kind::Headers,
            7 => Kind::GoAway,
            9 => Kind::Continuation,
            _ => Kind::Other,
        };
        Head { kind, flags, length: u32::from_be_bytes([0, a, b, c]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the payloads in bytes that come in pieces of a size.
    fn payloads(bytes: &[u8], size: usize) -> Vec<(Kind, u8, Vec<u8>)> {
        let mut frames = Frames::new();
        let mut found: Vec<(Kind, u8, Vec<u8>)> = Vec::new();
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
    fn frames_are_found_however_their_bytes_come() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(b"\0\0\0\x04\0\0\0\0\0");
        bytes.extend(b"\0\0\x03\x01\x25\0\0\0\x01abc");
        bytes.extend(b"\0\x01\0\0\x01\0\0\0\x01");
        bytes.extend([7; 256]);
        bytes.extend(b"\0\0\0\x09\x04\0\0\0\x01");
        bytes.extend(b"\0\0\x02\x07\0\0\0\0\0xy");
        let expected = [
            (Kind::Other, 0, Vec::new()),
            (Kind::Headers, 0x25, b"abc".to_vec()),
            (Kind::Other, 1, vec![7; 256]),
            (Kind::Continuation, 4, Vec::new()),
            (Kind::GoAway, 0, b"xy".to_vec()),
        ];
        for size in 1..=bytes.len() {
            assert_eq!(payloads(&bytes, size), expected, "{size}");
        }
    }

    #[test]
    fn what_is_no_http2_has_no_frames() {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n\0\0\0\x07\0\0\0\0\0"[..], b"PRI * HTTP/1.0", b""] {
            assert_eq!(payloads(bytes, 3), []);
        }
    }
}
