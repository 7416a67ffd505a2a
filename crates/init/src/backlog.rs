//! Output of a step that its host has not received: the newest in memory, the rest in files.
//!
//! The files are unlinked before they have content: other processes cannot open them, and the
//! kernel frees them when the keeper exits. A piece in a file is its stream (`u8`), its length
//! (`u32`) and its bytes.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::frames::journal::{MAX_OUTPUT_BYTES, OutputStream, output_header};

/// Size at which the step has to wait.
const MAX_BYTES: u64 = 64 << 20;
/// Part of that in memory.
const MAX_MEMORY_BYTES: usize = 256 << 10;
/// Size of a file, which is removed as a whole.
const FILE_BYTES: u64 = 4 << 20;
/// Size up to which pieces of one stream are joined.
const JOINED_BYTES: usize = 16 << 10;
/// Overhead of a piece in a file, and the larger one in memory.
const FILE_HEADER_BYTES: usize = 5;
const MEMORY_HEADER_BYTES: usize = 96;
/// A block of a file contains at least one whole piece.
const BLOCK_BYTES: usize = MAX_OUTPUT_BYTES + FILE_HEADER_BYTES;

/// Output of both streams, addressed by offset in the order of arrival.
pub struct Backlog {
    directory: PathBuf,
    /// Output before that in memory.
    files: VecDeque<BacklogFile>,
    memory: VecDeque<Piece>,
    memory_bytes: usize,
    /// Offset of the first byte.
    start: u64,
    /// Offset after the last byte.
    end: u64,
}

struct Piece {
    stream: OutputStream,
    offset: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

struct BacklogFile {
    file: File,
    start: u64,
    end: u64,
    /// The length of the file.
    length: u64,
}

/// Position of a reader.
#[derive(Clone, Copy)]
pub struct Cursor {
    pub offset: u64,
    /// Known position in a file: the file's `start`, the position of a piece, and the piece's offset.
    found: Option<(u64, u64, u64)>,
}

impl Cursor {
    pub(crate) fn new(offset: u64) -> Self {
        Cursor { offset, found: None }
    }
}

impl Backlog {
    /// Returns a backlog with files in this directory.
    pub fn new(directory: &Path) -> Self {
        Backlog {
            directory: directory.to_owned(),
            files: VecDeque::new(),
            memory: VecDeque::new(),
            memory_bytes: 0,
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns whether all output was received.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns whether more may be appended. If files cannot be written, the limit of the memory
    /// applies until some output was received.
    pub fn has_room(&mut self) -> bool {
        if self.memory_bytes > MAX_MEMORY_BYTES && self.spill().is_err() {
            return false;
        }
        let stored: u64 = self.files.iter().map(|segment| segment.length).sum();
        stored + (self.memory_bytes as u64) < MAX_BYTES
    }

    /// Appends at most [`MAX_OUTPUT_BYTES`].
    pub fn append(&mut self, stream: OutputStream, bytes: &[u8]) {
        let offset = self.end;
        self.end += bytes.len() as u64;
        self.memory_bytes += bytes.len();
        if let Some(last) = self.memory.back_mut()
            && last.stream == stream
            && last.bytes.len() + bytes.len() <= JOINED_BYTES
        {
            last.bytes.extend_from_slice(bytes);
            return;
        }
        self.memory_bytes += MEMORY_HEADER_BYTES;
        self.memory.push_back(Piece { stream, offset, bytes: bytes.to_vec() });
    }

    /// Writes the older half of the memory to a file.
    fn spill(&mut self) -> io::Result<()> {
        let mut written = Vec::new();
        let mut count = 0;
        let mut memory_bytes = self.memory_bytes;
        for piece in &self.memory {
            if written.len() >= MAX_MEMORY_BYTES / 2 {
                break;
            }
            written.push(piece.stream.number());
            written.extend(u32::try_from(piece.bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
            written.extend(&piece.bytes);
            memory_bytes -= piece.bytes.len() + MEMORY_HEADER_BYTES;
            count += 1;
        }
        let (Some(first), Some(last)) = (self.memory.front(), self.memory.range(..count).last())
        else {
            return Ok(());
        };
        let (start, end) = (first.offset, last.end());
        if self.files.back().is_none_or(|last| last.length >= FILE_BYTES) {
            let file = self.make_file(start)?;
            self.files.push_back(BacklogFile { file, start, end: start, length: 0 });
        }
        let Some(last) = self.files.back_mut() else { return Ok(()) };
        // After an incomplete write, the piece is written again at the same position.
        last.file.write_all_at(&written, last.length)?;
        last.length += written.len() as u64;
        last.end = end;
        self.memory.drain(..count);
        self.memory_bytes = memory_bytes;
        Ok(())
    }

    fn make_file(&self, start: u64) -> io::Result<File> {
        let path = self.directory.join(start.to_string());
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(path)?;
        Ok(file)
    }

    /// Drops the output before an offset.
    pub fn forget(&mut self, before: u64) {
        self.start = self.start.max(before.min(self.end));
        while self.files.front().is_some_and(|segment| segment.end <= self.start) {
            self.files.pop_front();
        }
        while self.memory.front().is_some_and(|piece| piece.end() <= self.start) {
            let piece = self.memory.pop_front();
            self.memory_bytes -= piece.map_or(0, |piece| piece.bytes.len() + MEMORY_HEADER_BYTES);
        }
    }

    /// Returns the next output after a cursor as frames, and advances the cursor. Returns nothing
    /// at the end, and an error before the start.
    pub fn read(&self, cursor: &mut Cursor) -> io::Result<Vec<u8>> {
        if cursor.offset < self.start {
            return Err(io::Error::other("forgotten"));
        }
        let segment = self.files.iter().find(|segment| cursor.offset < segment.end);
        match segment {
            Some(segment) => segment.read(cursor),
            None => Ok(self.read_memory(cursor)),
        }
    }

    fn read_memory(&self, cursor: &mut Cursor) -> Vec<u8> {
        let mut out = Vec::new();
        let first = self.memory.partition_point(|piece| piece.end() <= cursor.offset);
        for piece in self.memory.range(first..) {
            if !out.is_empty() && out.len() + piece.bytes.len() > MAX_OUTPUT_BYTES {
                break;
            }
            push_frame(&mut out, piece.stream, piece.offset, &piece.bytes, cursor);
        }
        out
    }
}

impl BacklogFile {
    fn read(&self, cursor: &mut Cursor) -> io::Result<Vec<u8>> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let found = cursor.found.filter(|(start, ..)| *start == self.start);
        let (mut place, mut offset) =
            found.map_or((0, self.start), |(_, place, offset)| (place, offset));
        let mut out = Vec::new();
        let mut block = vec![0; BLOCK_BYTES];
        while out.is_empty() && place < self.length {
            let left = usize::try_from(self.length - place).unwrap_or(usize::MAX);
            block.truncate(left.min(BLOCK_BYTES));
            self.file.read_exact_at(&mut block, place)?;
            let mut rest = &block[..];
            while let Some((&[stream, a, b, c, d], after)) = rest.split_first_chunk() {
                let length = u32::from_le_bytes([a, b, c, d]) as usize;
                let Some((bytes, after)) = after.split_at_checked(length) else { break };
                let stream = OutputStream::ALL.get(usize::from(stream)).ok_or_else(invalid)?;
                push_frame(&mut out, *stream, offset, bytes, cursor);
                offset += length as u64;
                place += (FILE_HEADER_BYTES + length) as u64;
                rest = after;
            }
            if rest.len() == block.len() {
                return Err(invalid());
            }
        }
        cursor.found = Some((self.start, place, offset));
        Ok(out)
    }
}

/// Appends the frame of a piece, or of its part after the cursor, and advances the cursor.
fn push_frame(
    out: &mut Vec<u8>,
    stream: OutputStream,
    offset: u64,
    bytes: &[u8],
    cursor: &mut Cursor,
) {
    let before = usize::try_from(cursor.offset.saturating_sub(offset)).unwrap_or(usize::MAX);
    let Some(left) = bytes.get(before..).filter(|left| !left.is_empty()) else { return };
    out.extend(output_header(stream, cursor.offset, left.len()));
    out.extend(left);
    cursor.offset += left.len() as u64;
}
