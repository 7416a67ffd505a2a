//! File operations relative to an open directory, through the C library, for `files` and `tree`. `at.rs` is
//! the equivalent for the host.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use crate::files::FileStat;

use super::ffi::*;
use super::{checked, to_owned_fd};

const ENOSYS: i32 = 38;
const EPERM: i32 = 1;
const O_WRONLY: c_int = 1;
const O_CREAT: c_int = 0o100;
const O_EXCL: c_int = 0o200;
const O_PATH: c_int = 0o10_000_000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY_NOFOLLOW: (c_int, c_int) = (0o40_000, 0o100_000);
#[cfg(not(target_arch = "aarch64"))]
const O_DIRECTORY_NOFOLLOW: (c_int, c_int) = (0o200_000, 0o400_000);
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;
const AT_REMOVEDIR: c_int = 0x200;
const UTIME_OMIT: c_long = 0x3fff_fffe;
#[cfg(target_arch = "x86_64")]
const SYS_STATX: c_long = 332;
#[cfg(not(target_arch = "x86_64"))]
const SYS_STATX: c_long = 291;
const STATX_BASIC_STATS: c_uint = 0x7ff;
const MAX_TARGET_BYTES: usize = 4096;

/// The kernel's `struct statx`, the same on all architectures.
#[repr(C)]
struct Statx {
    before_mode: [u32; 7],
    mode: u16,
    after_mode: u16,
    inode: u64,
    size: u64,
    before_mtime: [u64; 8],
    mtime_seconds: i64,
    mtime_nanoseconds: u32,
    rest: [u32; 33],
}

const _: () = assert!(size_of::<Statx>() == 256);

unsafe extern "C" {
    fn mkdirat(dir: c_int, path: *const c_char, mode: c_uint) -> c_int;
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int;
    fn readlinkat(dir: c_int, path: *const c_char, area: *mut u8, length: usize) -> isize;
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int;
    fn utimensat(
        dir: c_int,
        path: *const c_char,
        times: *const [Timespec; 2],
        flags: c_int,
    ) -> c_int;
    // glibc's `utimensat` does not accept a file without a path.
    fn futimens(file: c_int, times: *const [Timespec; 2]) -> c_int;
}

/// Opens a directory without following a link.
pub fn open_directory(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = O_DIRECTORY_NOFOLLOW.0 | O_DIRECTORY_NOFOLLOW.1 | O_CLOEXEC;
    // SAFETY: the name ends with a NUL.
    to_owned_fd(unsafe { openat(dir.as_raw_fd(), name.as_ptr(), flags) })
}

/// Opens a file for reading, without following a link or blocking on a FIFO.
pub fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = O_DIRECTORY_NOFOLLOW.1 | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    // SAFETY: the name ends with a NUL.
    to_owned_fd(unsafe { openat(dir.as_raw_fd(), name.as_ptr(), flags) }).map(File::from)
}

/// Creates a new file.
pub fn create_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    let mode: c_uint = 0o600;
    // SAFETY: the name ends with a NUL.
    to_owned_fd(unsafe { openat(dir.as_raw_fd(), name.as_ptr(), flags, mode) }).map(File::from)
}

/// Returns the metadata of a file, without following a link.
pub fn stat(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<FileStat> {
    // SAFETY: all of the structure's fields are numbers.
    let mut found: Statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a NUL; stores one structure.
    let result = unsafe {
        let area = &raw mut found;
        let flags = AT_SYMLINK_NOFOLLOW;
        syscall(SYS_STATX, dir.as_raw_fd(), name.as_ptr(), flags, STATX_BASIC_STATS, area)
    };
    if result == 0 {
        let time = (found.mtime_seconds, found.mtime_nanoseconds);
        return Ok(FileStat::new(u32::from(found.mode), found.size, time));
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(ENOSYS | EPERM)) {
        return Err(error);
    }
    // The kernel, or a seccomp filter, is older than statx(2).
    let flags = O_PATH | O_DIRECTORY_NOFOLLOW.1 | O_CLOEXEC;
    // SAFETY: the name ends with a NUL.
    let file = to_owned_fd(unsafe { openat(dir.as_raw_fd(), name.as_ptr(), flags) })?;
    stat_open(&File::from(file))
}

/// Returns the metadata of an open file.
pub fn stat_open(file: &File) -> io::Result<FileStat> {
    let found = file.metadata()?;
    let nanoseconds = u32::try_from(found.mtime_nsec()).unwrap_or(0);
    Ok(FileStat::new(found.mode(), found.size(), (found.mtime(), nanoseconds)))
}

/// Calls a function with each name in a directory.
pub fn for_each_name(dir: BorrowedFd<'_>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    /// Offset of the length in a `struct linux_dirent64`.
    const LENGTH: usize = 16;
    /// Offset of the name in a `struct linux_dirent64`.
    const NAME: usize = 19;
    let mut entries = vec![0_u8; 16 << 10];
    loop {
        // SAFETY: the length is that of the area.
        let count = unsafe {
            let area = entries.as_mut_ptr();
            syscall(SYS_GETDENTS64, dir.as_raw_fd(), area, entries.len())
        };
        let mut rest = match usize::try_from(count) {
            Err(_) => return Err(io::Error::last_os_error()),
            Ok(0) => return Ok(()),
            Ok(count) => &entries[..count],
        };
        while let (Some(length), Some(name)) = (rest.get(LENGTH..LENGTH + 2), rest.get(NAME..)) {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if !matches!(name, b"" | b"." | b"..") {
                take(name);
            }
            let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
    }
}

pub(crate) fn make_directory(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: the name ends with a NUL.
    checked(unsafe { mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

pub(crate) fn remove_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the name ends with a NUL.
    checked(unsafe { unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

pub(crate) fn remove_directory(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the name ends with a NUL.
    checked(unsafe { unlinkat(dir.as_raw_fd(), name.as_ptr(), AT_REMOVEDIR) }).map(drop)
}

/// Renames a file within a directory, replacing another one.
pub fn rename(dir: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    let dir = dir.as_raw_fd();
    // SAFETY: the names end with NULs.
    checked(unsafe { renameat(dir, from.as_ptr(), dir, to.as_ptr()) }).map(drop)
}

pub(crate) fn make_link(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: both end with a NUL.
    checked(unsafe { symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }).map(drop)
}

pub(crate) fn read_link(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<u8>> {
    let mut target = vec![0; MAX_TARGET_BYTES];
    // SAFETY: the name ends with a NUL, and the length is that of the area.
    let count =
        unsafe { readlinkat(dir.as_raw_fd(), name.as_ptr(), target.as_mut_ptr(), target.len()) };
    target.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(target)
}

fn times((seconds, nanoseconds): (i64, u32)) -> [Timespec; 2] {
    [
        Timespec { seconds: 0, nanoseconds: UTIME_OMIT },
        Timespec { seconds, nanoseconds: c_long::from(nanoseconds) },
    ]
}

/// Sets the modification time of a file, without following a link.
pub fn set_time(dir: BorrowedFd<'_>, name: &CStr, time: (i64, u32)) -> io::Result<()> {
    let (times, flags) = (times(time), AT_SYMLINK_NOFOLLOW);
    // SAFETY: the name ends with a NUL, and there are two times.
    checked(unsafe { utimensat(dir.as_raw_fd(), name.as_ptr(), &raw const times, flags) }).map(drop)
}

/// Sets the modification time of an open file.
pub fn set_open_time(file: &File, time: (i64, u32)) -> io::Result<()> {
    let times = times(time);
    // SAFETY: there are two times.
    checked(unsafe { futimens(file.as_raw_fd(), &raw const times) }).map(drop)
}
