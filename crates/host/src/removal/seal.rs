//! Removes files and opens directories despite modes without permissions, and despite the
//! attributes immutable and append-only (`chattr +i`, `+a`), which bind root too and which a
//! privileged job can set. A file with one of these attributes is called sealed.
//!
//! Modes and attributes are changed, by descriptor, when they prevent the removal of an entry.

use oci_hooks_files::beneath::{PATH_ONLY, descriptor_path, open_strictly};
use oci_hooks_files::descent::DIRECTORY;
use oci_hooks_files::fs::READ_FLAGS;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, IFlags, Mode, chmod, fchmod, fstat, ioctl_getflags, ioctl_setflags, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

const SEALS: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// Removes a file or an empty directory, even if it or its parent directory is sealed.
pub fn unlink<P: Arg + Copy>(here: BorrowedFd<'_>, name: P, flags: AtFlags) -> Result<(), Errno> {
    match unlink_top(here, name, flags) {
        // If unsealing fails, the second call returns the same error.
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

/// Removes a file or an empty directory, even if it is sealed; the parent directory is not part of the removed tree,
/// and stays as it is.
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

/// Opens a directory, even if its mode or that of its parent does not permit it.
pub fn open<P: Arg + Copy>(here: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    match open_top(here, name) {
        Err(Errno::ACCESS) => {
            fchmod(here, Mode::RWXU)?;
            open_top(here, name)
        }
        opened => opened,
    }
}

/// Opens a directory, even if its mode does not permit it; the parent directory stays as it is.
pub fn open_top<P: Arg + Copy>(parent: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let entry = open_strictly(parent, name, PATH_ONLY, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&entry)?.st_mode).is_dir() {
                chmod(descriptor_path(&entry), Mode::RWXU)?;
            }
            open_strictly(parent, name, DIRECTORY, Mode::empty())
        }
        opened => opened,
    }
}

fn unseal_entry<P: Arg + Copy>(here: BorrowedFd<'_>, name: P) -> Result<(), Errno> {
    let entry = open_strictly(here, name, PATH_ONLY, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&entry)?.st_mode);
    // Other file types do not have these attributes, and opening a device may have side effects.
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    unseal(rustix::fs::open(descriptor_path(&entry), READ_FLAGS, Mode::empty())?.as_fd())
}

fn unseal(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = ioctl_getflags(file)?;
    if flags.intersects(SEALS) {
        ioctl_setflags(file, flags - SEALS)?;
    }
    Ok(())
}
