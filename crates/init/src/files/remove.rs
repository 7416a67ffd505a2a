//! Removal of a file, or of a directory with its content.

use std::io;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, unlinkat};
use rustix::io::Errno;

use super::{MAX_DEPTH, errno, for_each_name, open_at};

/// Removes a file or directory, if it exists. Follows no link.
pub fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    remove_at(dir, name, 0)
}

/// Removes the content of a directory.
pub fn clear_directory(dir: &OwnedFd) -> io::Result<()> {
    clear(dir, 0)
}

fn remove_at(dir: BorrowedFd<'_>, name: &[u8], depth: usize) -> io::Result<()> {
    let remove_empty = || unlinkat(dir, name, AtFlags::REMOVEDIR);
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        // POSIX specifies this error for directories; files that cannot be removed cause it too.
        Err(Errno::PERM) => return Ok(remove_empty()?),
        failed => failed?,
    }
    if depth == MAX_DEPTH {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    if remove_empty().is_ok() {
        return Ok(());
    }
    match open_at(dir, name, OFlags::DIRECTORY) {
        Err(Errno::NOENT) => return Ok(()),
        below => clear(&below?, depth)?,
    }
    match remove_empty() {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

fn clear(dir: &OwnedFd, depth: usize) -> io::Result<()> {
    let mut names = Vec::new();
    for_each_name(dir, |name| names.push(name.to_vec()))?;
    let mut may_write = true;
    for name in names {
        match remove_at(dir.as_fd(), &name, depth + 1) {
            // The owner has made the directory read-only.
            Err(error) if may_write && errno(&error) == Errno::ACCESS.raw_os_error() => {
                may_write = false;
                fchmod(dir, Mode::RWXU)?;
                remove_at(dir.as_fd(), &name, depth + 1)?;
            }
            result => result?,
        }
    }
    Ok(())
}
