//! What keeps an owner from removing files: modes that permit nothing, and flags that bind root too
//! (immutable, and to be appended to only: `chattr +i`, `+a`), which a privileged job can set.
//!
//! Nobody needs anything of a tree that is removed, so they are taken away, by descriptor, from what is in
//! the way.

use std::os::fd::AsRawFd as _;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, IFlags, Mode, OFlags, chmod, fchmod, fstat, ioctl_getflags, ioctl_setflags,
    unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use super::super::beneath::open_strictly;
use super::super::descent::DIRECTORY;

/// Opened so, a file stays the one that it was when it was opened, and nothing happens to it.
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const SEALS: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// Removes a file or an empty directory, also if that or the directory it is in is sealed.
pub fn unlink<P: Arg + Copy>(here: BorrowedFd<'_>, name: P, flags: AtFlags) -> Result<(), Errno> {
    match unlink_top(here, name, flags) {
        // If it does not help, the kernel says the same again.
        Err(Errno::PERM) => {
            let _ = unseal(here);
            unlinkat(here, name, flags)
        }
        Err(Errno::ACCESS) => {
            let _ = fchmod(here, Mode::RWXU);
            unlinkat(here, name, flags)
        }
        done => done,
    }
}

/// Does the same where the directory it is in is none of what is removed, and stays as it is.
pub fn unlink_top<P: Arg + Copy>(
    parent: BorrowedFd<'_>,
    name: P,
    flags: AtFlags,
) -> Result<(), Errno> {
    match unlinkat(parent, name, flags) {
        Err(Errno::PERM) => {
            let _ = unseal_entry(parent, name);
            unlinkat(parent, name, flags)
        }
        done => done,
    }
}

/// Opens a directory, also if its mode or that of the one it is in does not permit it.
pub fn open<P: Arg + Copy>(here: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    match open_top(here, name) {
        Err(Errno::ACCESS) => {
            fchmod(here, Mode::RWXU)?;
            open_top(here, name)
        }
        opened => opened,
    }
}

/// Does the same where the directory it is in is none of what is removed.
pub fn open_top<P: Arg + Copy>(parent: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let entry = open_strictly(parent, name, PATH_ONLY, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&entry)?.st_mode).is_dir() {
                chmod(by_number(&entry), Mode::RWXU)?;
            }
            open_strictly(parent, name, DIRECTORY, Mode::empty())
        }
        opened => opened,
    }
}

fn by_number(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn unseal_entry<P: Arg + Copy>(here: BorrowedFd<'_>, name: P) -> Result<(), Errno> {
    let entry = open_strictly(here, name, PATH_ONLY, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&entry)?.st_mode);
    // Nothing else has such flags by this call, and to open a device may do something.
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    unseal(rustix::fs::open(by_number(&entry), flags, Mode::empty())?.as_fd())
}

fn unseal(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = ioctl_getflags(file)?;
    if flags.intersects(SEALS) {
        ioctl_setflags(file, flags - SEALS)?;
    }
    Ok(())
}
