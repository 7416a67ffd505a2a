//! Reads and writes file trees, for both ends of an exchange: the agent of a container, and the host.
//!
//! Symbolic links beneath a root are not followed: every name is looked up in a directory that is
//! already open.

mod changes;
mod remove;
mod walk;
mod write;

use std::io;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, openat, statat};
use rustix::io::{Errno, retry_on_intr};

use crate::frames::files::{FileEntryKind, FileEntryState, FileTime};

pub use changes::{ChangeFinder, SentChange};
pub use write::{AppliedChange, WritableTree, WriterRole};

/// Prefix of the names of incomplete files, which are not exchanged.
const PART: &[u8] = b".oci-hooks.part";
/// Maximum depth of directories, each of which is kept open.
const MAX_DEPTH: usize = 256;
const LIST_BYTES: usize = 32 << 10;

/// Opens a file without following a link or blocking on a FIFO.
fn open_at(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    retry_on_intr(|| openat(dir, name, flags, Mode::RUSR | Mode::WUSR))
}

/// Returns the state of a file, without following a link; `None` for kinds that are not exchanged.
fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Option<FileEntryState>> {
    Ok(to_state(&statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

#[expect(clippy::useless_conversion, reason = "other types on other architectures")]
fn to_state(found: &Stat) -> Option<FileEntryState> {
    let kind = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => FileEntryKind::File,
        FileType::Directory => FileEntryKind::Directory,
        FileType::Symlink => FileEntryKind::Link,
        _ => return None,
    };
    // The size of a directory depends on the file system.
    let size = if kind == FileEntryKind::Directory { 0 } else { found.st_size };
    let nanoseconds = u32::try_from(found.st_mtime_nsec).unwrap_or(0);
    Some(FileEntryState {
        kind,
        mode: found.st_mode & 0o7777,
        size_bytes: u64::try_from(size).unwrap_or(0),
        time: FileTime { seconds: found.st_mtime.into(), nanoseconds },
    })
}

/// Calls a function with each name in a directory.
fn for_each_name(dir: &OwnedFd, mut take: impl FnMut(&[u8])) -> rustix::io::Result<()> {
    let mut buffer = Vec::with_capacity(LIST_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // The directory has been removed.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name();
        if name != c"." && name != c".." {
            take(name.to_bytes());
        }
    }
    Ok(())
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Returns whether the file, or a directory on its path, was removed or replaced.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
