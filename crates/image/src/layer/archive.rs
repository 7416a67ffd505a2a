//! Archives: the entries of a tar file, in order.
//!
//! Headers are parsed by the `tar` crate. Its iterator is not used: it keeps names and extended
//! headers of any length in memory, and takes a newline in an extended attribute, as binary
//! capabilities may have, for the end of a record.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};

use tar::{EntryType, Header};

use super::error::UnpackError;
use super::pax::{self, Pax};
use super::sparse::{self, SparseSegment};

pub const BLOCK_BYTES: u64 = 512;

/// Longest header that extends another one: names, extended attributes, maps of sparse files. Go's
/// `archive/tar` has the same limit.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// Input of an archive.
pub trait ArchiveInput: BufRead {
    /// Skips bytes. The end of the input may be reported now or by the next read.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
}

impl ArchiveInput for BufReader<File> {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.seek_relative(i64::try_from(bytes).map_err(|_| ErrorKind::UnexpectedEof)?)
    }
}

/// Tar file that is read from start to end.
pub struct TarArchive<R> {
    reader: R,
    offset: u64,
    /// Unread bytes of the current entry's data.
    left: u64,
    /// Bytes between the data and the next block.
    padding: u64,
}

/// Type of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TarEntryKind {
    #[default]
    File,
    Directory,
    Symlink,
    Hardlink,
    Character,
    Block,
    Fifo,
}

/// One entry of an archive.
#[derive(Debug, Default)]
pub struct TarEntry {
    pub kind: TarEntryKind,
    /// Name as in the archive.
    pub path: Vec<u8>,
    pub target: Vec<u8>,
    /// Size of the file, with its holes.
    pub size: u64,
    /// Offset of the data in the archive.
    pub offset: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    pub device: (u32, u32),
    /// Extended attributes: names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Positions of the data of a sparse file; `None` for other files.
    pub segments: Option<Vec<SparseSegment>>,
}

/// Headers that extend the next entry.
#[derive(Default)]
struct HeaderExtensions {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    pax: Option<Pax>,
}

impl<R: ArchiveInput> TarArchive<R> {
    pub(crate) fn new(reader: R) -> Self {
        TarArchive { reader, offset: 0, left: 0, padding: 0 }
    }

    /// Reads up to the data of the next entry. Returns false at the end of the archive.
    pub fn next(&mut self, entry: &mut TarEntry) -> Result<bool, UnpackError> {
        let mut extensions = HeaderExtensions::default();
        let mut has_extensions = false;
        loop {
            self.skip(self.left + self.padding)?;
            (self.left, self.padding) = (0, 0);
            let Some(header) = self.header()? else {
                return match has_extensions {
                    true => {
                        Err(self
                            .malformed_error("it ends after an extended header, without its entry"))
                    }
                    false => Ok(false),
                };
            };
            let size = number(&header.as_old().size).and_then(|size| u64::try_from(size).ok());
            let size = size.ok_or_else(|| self.malformed_error("a size is not a number"))?;
            let slot = match header.entry_type() {
                EntryType::XGlobalHeader => {
                    let data = self.extension(size)?;
                    pax::check_global(&data).map_err(|reason| self.malformed_error(reason))?;
                    continue;
                }
                EntryType::XHeader => {
                    let data = self.extension(size)?;
                    let pax = Pax::parse(&data).map_err(|reason| self.malformed_error(reason))?;
                    if extensions.pax.replace(pax).is_some() {
                        return Err(self.malformed_error("two extended headers for one entry"));
                    }
                    has_extensions = true;
                    continue;
                }
                EntryType::GNULongName => &mut extensions.path,
                EntryType::GNULongLink => &mut extensions.target,
                _ => {
                    self.describe(&header, size, extensions, entry)?;
                    return Ok(true);
                }
            };
            let mut name = self.extension(size)?;
            name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
            if slot.replace(name).is_some() {
                return Err(self.malformed_error("two long names for one entry"));
            }
            has_extensions = true;
        }
    }

    /// Passes the data of the current entry to a function, piece by piece, at most `limit` bytes.
    pub fn data(
        &mut self,
        limit: u64,
        mut sink: impl FnMut(&[u8]) -> Result<(), UnpackError>,
    ) -> Result<(), UnpackError> {
        let mut wanted = self.left.min(limit);
        while wanted > 0 {
            let buffer = self.reader.fill_buf().map_err(UnpackError::Read)?;
            if buffer.is_empty() {
                return Err(self.malformed_error("it ends in the middle of an entry"));
            }
            let count = usize::try_from(wanted).map_or(buffer.len(), |n| n.min(buffer.len()));
            sink(&buffer[..count])?;
            self.reader.consume(count);
            self.offset += count as u64;
            self.left -= count as u64;
            wanted -= count as u64;
        }
        Ok(())
    }

    /// Reads all data of the current entry, if it is not too long.
    pub fn content(&mut self, max_bytes: u64) -> Result<Vec<u8>, UnpackError> {
        if self.left > max_bytes {
            return Err(self.malformed_error("an entry is too long"));
        }
        let mut content = Vec::new();
        self.data(u64::MAX, |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(content)
    }

    /// Reads and discards the input after the end of the archive.
    pub fn drain(&mut self) -> Result<(), UnpackError> {
        loop {
            let buffer = self.reader.fill_buf().map_err(UnpackError::Read)?;
            if buffer.is_empty() {
                return Ok(());
            }
            let count = buffer.len();
            self.reader.consume(count);
        }
    }

    pub(super) fn into_reader(self) -> R {
        self.reader
    }

    /// Returns the number of unread bytes of the current entry.
    pub fn unread_bytes(&self) -> u64 {
        self.left
    }

    pub(super) fn malformed_error(&self, reason: &'static str) -> UnpackError {
        UnpackError::Archive { offset: self.offset, reason }
    }

    /// Reads the next header; returns `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, UnpackError> {
        let mut header = Header::new_old();
        if !self.block(header.as_mut_bytes())? {
            return Ok(None);
        }
        if is_zero(header.as_bytes()) {
            // After a single block of zeros, Go's reader fails and GNU tar ends.
            return match self.block(header.as_mut_bytes())? && !is_zero(header.as_bytes()) {
                true => Err(self.malformed_error("a block of zeros is followed by an entry")),
                false => Ok(None),
            };
        }
        let bytes = header.as_bytes();
        let others = || bytes[..148].iter().chain(&bytes[156..]).copied();
        let unsigned = others().map(i128::from).sum::<i128>() + 8 * i128::from(b' ');
        // Some old programs summed signed bytes.
        let signed =
            || others().map(|b| i128::from(b.cast_signed())).sum::<i128>() + 8 * i128::from(b' ');
        let stated = number(&header.as_old().cksum);
        if stated.is_none_or(|sum| sum != unsigned && sum != signed()) {
            return Err(self.malformed_error("a header's checksum is wrong"));
        }
        Ok(Some(header))
    }

    /// Converts a header and its extensions to an entry, and prepares for reading its data.
    fn describe(
        &mut self,
        header: &Header,
        size: u64,
        extensions: HeaderExtensions,
        entry: &mut TarEntry,
    ) -> Result<(), UnpackError> {
        let pax = extensions.pax.unwrap_or_default();
        if extensions.path.is_some() && (pax.path.is_some() || pax.sparse.name.is_some())
            || extensions.target.is_some() && pax.target.is_some()
        {
            return Err(self.malformed_error("an entry has two long names"));
        }
        let path = pax.sparse.name.clone().or(pax.path).or(extensions.path);
        entry.path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let target = pax.target.or(extensions.target);
        entry.target =
            target.or_else(|| Some(header.link_name_bytes()?.into_owned())).unwrap_or_default();

        let old = header.as_old();
        entry.kind = match header.entry_type() {
            // Old archives without types mark directories with a slash.
            EntryType::Regular if entry.path.ends_with(b"/") => TarEntryKind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => TarEntryKind::File,
            EntryType::Link => TarEntryKind::Hardlink,
            EntryType::Symlink => TarEntryKind::Symlink,
            EntryType::Char => TarEntryKind::Character,
            EntryType::Block => TarEntryKind::Block,
            EntryType::Directory => TarEntryKind::Directory,
            EntryType::Fifo => TarEntryKind::Fifo,
            _ => return Err(self.malformed_error("an entry is of an unknown type")),
        };
        let mut size = pax.size.unwrap_or(size);
        match entry.kind {
            TarEntryKind::File => {}
            // Readers agree that the data is that of the link's target.
            TarEntryKind::Hardlink => size = 0,
            _ if size != 0 => return Err(self.malformed_error("an entry without data has a size")),
            _ => {}
        }
        let id = |name: Option<u64>, field: &[u8]| {
            let id = name.map(i128::from).or_else(|| number(field))?;
            // The highest id means "do not change" to the kernel.
            u32::try_from(id).ok().filter(|id| *id != u32::MAX)
        };
        let no_owner = || self.malformed_error("an owner is not a number below 2^32 - 1");
        entry.uid = id(pax.uid, &old.uid).ok_or_else(no_owner)?;
        entry.gid = id(pax.gid, &old.gid).ok_or_else(no_owner)?;
        let mode =
            number(&old.mode).ok_or_else(|| self.malformed_error("a mode is not a number"))?;
        entry.mode = u32::try_from(mode & 0o7777).expect("twelve bits");
        let seconds = || Some((i64::try_from(number(&old.mtime)?).ok()?, 0));
        let mtime = pax.mtime.or_else(seconds);
        entry.mtime = mtime.ok_or_else(|| self.malformed_error("a time is not a number"))?;
        entry.device = (0, 0);
        if matches!(entry.kind, TarEntryKind::Character | TarEntryKind::Block) {
            let device = |number: io::Result<Option<u32>>| number.ok().flatten();
            let major = device(header.device_major());
            let numbers = major.zip(device(header.device_minor()));
            entry.device = numbers
                .ok_or_else(|| self.malformed_error("a device has no valid device number"))?;
        }
        entry.xattrs = pax.xattrs;

        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK_BYTES;
        entry.segments = None;
        entry.size = size;
        if entry.kind == TarEntryKind::File {
            let is_old_sparse = header.entry_type() == EntryType::GNUSparse;
            if let Some(map) = sparse::read(self, header, is_old_sparse, &pax.sparse)? {
                entry.size = map.size;
                entry.segments = Some(map.segments);
            }
        }
        entry.offset = self.offset;
        Ok(())
    }

    /// Reads the data of a header that extends the next entry, including the padding of its last
    /// block.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, UnpackError> {
        if size > MAX_EXTENSION_BYTES {
            return Err(self.malformed_error("an extended header is too long"));
        }
        self.left = size;
        let data = self.content(MAX_EXTENSION_BYTES)?;
        self.skip(size.wrapping_neg() % BLOCK_BYTES)?;
        Ok(data)
    }

    /// Reads a block. Returns false at the end of the input.
    pub fn block(&mut self, block: &mut [u8; 512]) -> Result<bool, UnpackError> {
        let mut filled = 0;
        while filled < block.len() {
            let buffer = self.reader.fill_buf().map_err(UnpackError::Read)?;
            if buffer.is_empty() {
                return match filled {
                    0 => Ok(false),
                    _ => Err(self.malformed_error("it ends in the middle of a block")),
                };
            }
            let count = buffer.len().min(block.len() - filled);
            block[filled..filled + count].copy_from_slice(&buffer[..count]);
            self.reader.consume(count);
            filled += count;
            self.offset += count as u64;
        }
        Ok(true)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), UnpackError> {
        self.reader.skip(bytes).map_err(UnpackError::Read)?;
        self.offset = self.offset.saturating_add(bytes);
        Ok(())
    }
}

fn is_zero(block: &[u8; 512]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Reads a number in a header: octal digits, or GNU's binary form for larger and negative ones.
pub fn number(field: &[u8]) -> Option<i128> {
    if field[0] & 0x80 != 0 {
        // All fields have at most twelve bytes; the sign is the second bit.
        let first = i128::from(field[0] & 0x3f) - i128::from(field[0] & 0x40);
        return Some(field[1..].iter().fold(first, |value, byte| value << 8 | i128::from(*byte)));
    }
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    field[..end].trim_ascii().iter().try_fold(0, |value: i128, byte| match byte {
        b'0'..=b'7' => Some(value << 3 | i128::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, expected) in [
            (&b"0000755\0"[..], Some(0o755)),
            (b"   755 \0", Some(0o755)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"7777777", Some(0o7_777_777)),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"00008\0\0\0", None),
            (b"-1\0\0\0\0\0\0", None),
            (b"+1\0\0\0\0\0\0", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }
}
