//! Reads and writes file trees, for both ends of an exchange: the agent of a container, and the host.
//!
//! Symbolic links beneath a root are not followed: every name is looked up in a directory that is
//! already open.

mod changes;
mod remove;
mod walk;
mod write;

use std::ffi::CString;
use std::io;

use crate::frames::files::{FileEntryKind, FileEntryState, FileTime};

pub use changes::{ChangeFinder, SentChange};
pub use write::{AppliedChange, WritableTree, WriterRole};

/// Prefix of the names of incomplete files, which are not exchanged.
const PART: &[u8] = b".oci-hooks.part";
/// Maximum depth of directories, each of which is kept open.
const MAX_DEPTH: usize = 256;

const FORMAT: u32 = 0o170_000;

/// Metadata of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileStat {
    /// `None` for kinds that are not exchanged.
    pub kind: Option<FileEntryKind>,
    /// Permission bits, within `0o7777`.
    pub mode: u32,
    pub size_bytes: u64,
    pub time: FileTime,
}

impl FileStat {
    pub(crate) fn new(mode: u32, size_bytes: u64, (seconds, nanoseconds): (i64, u32)) -> Self {
        let kind = match mode & FORMAT {
            0o100_000 => Some(FileEntryKind::File),
            0o040_000 => Some(FileEntryKind::Directory),
            0o120_000 => Some(FileEntryKind::Link),
            _ => None,
        };
        FileStat { kind, mode: mode & 0o7777, size_bytes, time: FileTime { seconds, nanoseconds } }
    }

    pub(crate) fn state(&self) -> Option<FileEntryState> {
        let kind = self.kind?;
        // The size of a directory depends on the file system.
        let size_bytes = if kind == FileEntryKind::Directory { 0 } else { self.size_bytes };
        Some(FileEntryState { kind, mode: self.mode, size_bytes, time: self.time })
    }
}

/// Converts a name to a C string.
fn to_c_string(name: &[u8]) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
