//! The connections that NRI multiplexes over one socket.
//!
//! A frame consists of the number of a connection, the length of the payload, 4 bytes each, and the payload.
//! A connection is a byte stream: frames may end anywhere in its messages.

/// The connection on which the runtime calls the plugin.
pub const PLUGIN: u32 = 1;

/// The connection on which the plugin calls the runtime.
pub const RUNTIME: u32 = 2;

const HEADER_BYTES: usize = 8;

/// Size of the buffer through which Go's NRI package, used by the runtimes, reads the start of a
/// message. It reads the rest into a buffer of the remaining length. It fails on a frame that is
/// larger than the buffer in use.
const READER_BYTES: usize = 4096;

/// Separates the connections of a socket.
///
/// Payloads are not buffered, so frames may have any length.
#[derive(Debug, Default)]
pub struct Demultiplexer {
    header: [u8; HEADER_BYTES],
    header_length: usize,
    /// Number of payload bytes of the current frame that have not arrived.
    left: usize,
}

impl Demultiplexer {
    /// Passes the payloads in `bytes` to `deliver`, each with its connection, in parts as they arrive.
    pub fn feed(&mut self, mut bytes: &[u8], mut deliver: impl FnMut(u32, &[u8])) {
        while !bytes.is_empty() {
            if self.left == 0 {
                bytes = self.feed_header(bytes);
                continue;
            }
            let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
            let [a, b, c, d, ..] = self.header;
            deliver(u32::from_be_bytes([a, b, c, d]), payload);
            self.left -= payload.len();
            bytes = rest;
        }
    }

    /// Reads a part of a header, and returns the bytes after it.
    fn feed_header<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (part, rest) = bytes.split_at((HEADER_BYTES - self.header_length).min(bytes.len()));
        self.header[self.header_length..][..part.len()].copy_from_slice(part);
        self.header_length += part.len();
        if self.header_length == HEADER_BYTES {
            let [.., a, b, c, d] = self.header;
            self.left = u32::from_be_bytes([a, b, c, d]) as usize;
            self.header_length = 0;
        }
        rest
    }
}

/// Appends a message to `out`, in at most two frames, which fit the buffers of Go's NRI package.
pub fn multiplex(connection: u32, message: &[u8], out: &mut Vec<u8>) {
    let (first, rest) = message.split_at(message.len().min(READER_BYTES));
    for payload in [first, rest] {
        if payload.is_empty() {
            continue;
        }
        let length = u32::try_from(payload.len()).expect("messages have at most 4 MiB");
        out.extend(connection.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demultiplex_parts(parts: impl Iterator<Item = Vec<u8>>) -> [Vec<u8>; 3] {
        let mut streams = [const { Vec::new() }; 3];
        let mut demultiplexer = Demultiplexer::default();
        for part in parts {
            demultiplexer
                .feed(&part, |connection, bytes| streams[connection as usize].extend(bytes));
        }
        streams
    }

    #[test]
    fn connections_are_separated_however_bytes_arrive() {
        let large = vec![7; 10_000];
        let mut bytes = Vec::new();
        multiplex(PLUGIN, b"one", &mut bytes);
        multiplex(RUNTIME, &large, &mut bytes);
        multiplex(PLUGIN, b"", &mut bytes);
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        multiplex(PLUGIN, b" two", &mut bytes);
        for size in [1, 2, 7, 8, 9, 4096, 100_000] {
            let parts = bytes.chunks(size).map(<[u8]>::to_vec);
            assert_eq!(
                demultiplex_parts(parts),
                [vec![], b"one two".to_vec(), large.clone()],
                "{size}"
            );
        }
    }

    #[test]
    fn message_has_at_most_two_frames_that_fit_gos_buffer() {
        for (size, frames) in [(1, 1), (4096, 1), (4097, 2), (1 << 20, 2)] {
            let mut bytes = Vec::new();
            multiplex(PLUGIN, &vec![0; size], &mut bytes);
            assert_eq!(bytes.len(), size + frames * HEADER_BYTES);
            let first = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
            assert_eq!(first, size.min(READER_BYTES));
        }
    }

    #[test]
    fn frame_length_does_not_affect_memory() {
        let mut demultiplexer = Demultiplexer::default();
        demultiplexer.feed(&[0, 0, 0, 9, 255, 255, 255, 255], |_, _| unreachable!());
        let mut count = 0;
        for _ in 0..100 {
            demultiplexer.feed(&[0; 1000], |connection, bytes| {
                assert_eq!(connection, 9);
                count += bytes.len();
            });
        }
        assert_eq!(count, 100_000);
    }
}
