//! File operations relative to an open directory, for `files`.

use std::ffi::CStr;
use std::fs::File;
use std::io;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Mode, OFlags, RawDir, Stat as Found, Timespec, Timestamps, UTIME_OMIT, fstat,
    futimens, mkdirat, openat, readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, retry_on_intr};

use crate::files::FileStat;

const LIST_BYTES: usize = 32 << 10;

/// Opens a directory without following a link.
pub fn open_directory(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| openat(dir, name, flags, Mode::empty()))?)
}

/// Opens a file for reading, without following a link or blocking on a FIFO.
pub fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(retry_on_intr(|| openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty()))?.into())
}

/// Creates a new file.
pub fn create_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| openat(dir, name, flags, Mode::RUSR | Mode::WUSR))?.into())
}

/// Returns the metadata of a file, without following a link.
pub fn stat(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<FileStat> {
    Ok(to_file_stat(&statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Returns the metadata of an open file.
pub fn stat_open(file: &File) -> io::Result<FileStat> {
    Ok(to_file_stat(&fstat(file)?))
}

#[expect(clippy::useless_conversion, reason = "other types on other architectures")]
fn to_file_stat(found: &Found) -> FileStat {
    let nanoseconds = u32::try_from(found.st_mtime_nsec).unwrap_or(0);
    let size = u64::try_from(found.st_size).unwrap_or(0);
    FileStat::new(found.st_mode, size, (found.st_mtime.into(), nanoseconds))
}

/// Calls a function with each name in a directory.
pub fn for_each_name(dir: BorrowedFd<'_>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
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

pub(crate) fn make_directory(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    Ok(mkdirat(dir, name, Mode::from_raw_mode(mode))?)
}

pub(crate) fn remove_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Ok(unlinkat(dir, name, AtFlags::empty())?)
}

pub(crate) fn remove_directory(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Renames a file within a directory, replacing another one.
pub fn rename(dir: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    Ok(renameat(dir, from, dir, to)?)
}

pub(crate) fn make_link(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Ok(symlinkat(target, dir, name)?)
}

pub(crate) fn read_link(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<u8>> {
    Ok(readlinkat(dir, name, Vec::new())?.into_bytes())
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// Sets the modification time of a file, without following a link.
pub fn set_time(dir: BorrowedFd<'_>, name: &CStr, time: (i64, u32)) -> io::Result<()> {
    Ok(utimensat(dir, name, &times(time), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets the modification time of an open file.
pub fn set_open_time(file: &File, time: (i64, u32)) -> io::Result<()> {
    Ok(futimens(file, &times(time))?)
}
