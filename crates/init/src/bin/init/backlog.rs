//! Output of a step that its host has not received.

use std::collections::VecDeque;

use oci_hooks_init::frames::journal::{
    MAX_OUTPUT_BYTES, OutputStream, RECEIVED_BYTES, output_header,
};

/// Size in memory at which no more output is read, so that the step blocks. Even if every part has
/// a single byte, this is more than the [`RECEIVED_BYTES`] that make a host acknowledge output.
const MAX_BYTES: usize = 384 << 10;
/// Size in memory of a part's stream and offset.
const PART_BYTES: usize = size_of::<(OutputStream, u64)>();
const _: () = assert!((MAX_BYTES / (1 + PART_BYTES)) as u64 > RECEIVED_BYTES);

/// Output of both streams, addressed by offset in the order of arrival.
#[derive(Default)]
pub struct Backlog {
    bytes: VecDeque<u8>,
    /// Parts of the output, each from one stream: the stream, and the offset after the part.
    parts: VecDeque<(OutputStream, u64)>,
    /// Offset of the first byte in `bytes`.
    start: u64,
}

impl Backlog {
    /// Returns the offset after the last byte.
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Returns whether more may be appended.
    pub fn has_room(&self) -> bool {
        self.bytes.len() + self.parts.len() * PART_BYTES < MAX_BYTES
    }

    /// Appends output.
    pub fn append(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let end = self.end();
        match self.parts.back_mut() {
            Some((last, last_end)) if *last == stream => *last_end = end,
            _ => self.parts.push_back((stream, end)),
        }
    }

    /// Drops the output before an offset.
    pub fn forget(&mut self, before: u64) {
        let count = before.min(self.end()).saturating_sub(self.start);
        self.bytes.drain(..to_usize(count));
        self.start += count;
        while self.parts.front().is_some_and(|(_, end)| *end <= self.start) {
            self.parts.pop_front();
        }
    }

    /// Returns the next output after a cursor as frames, and advances the cursor. Returns no frames
    /// if there is no further output, and `None` if output after the cursor was dropped.
    pub fn read(&self, cursor: &mut u64) -> Option<Vec<u8>> {
        let mut begin = to_usize(cursor.checked_sub(self.start)?);
        let mut frames: Vec<u8> = Vec::new();
        let first = self.parts.partition_point(|(_, end)| *end <= *cursor);
        for (stream, end) in self.parts.range(first..) {
            if frames.len() >= MAX_OUTPUT_BYTES {
                break;
            }
            let length = to_usize(end - *cursor).min(MAX_OUTPUT_BYTES);
            frames.extend(output_header(*stream, *cursor, length));
            frames.extend(self.bytes.range(begin..begin + length));
            begin += length;
            *cursor += length as u64;
        }
        Some(frames)
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
