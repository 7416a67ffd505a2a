//! Attributes: owner, mode, extended attributes and time of a file.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat,
    fchmod, fchown, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::archive::{Entry, Kind};

/// What new files get by themselves, and so need not be given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    umask: u32,
    owner: (u32, u32),
}

impl Attributes {
    pub(super) fn new() -> Self {
        // There is no other way to learn it without changing it for all threads.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let umask = umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
        Attributes {
            umask: umask.unwrap_or(0o777),
            owner: (geteuid().as_raw(), getegid().as_raw()),
        }
    }

    /// Returns whether all that an entry asks for can be had.
    pub(super) fn is_root(&self) -> bool {
        self.owner.0 == 0
    }

    /// Takes from an entry what only root can give, and what would keep another user out of it.
    pub(super) fn fit(&self, entry: &mut Entry) {
        if self.is_root() {
            return;
        }
        (entry.uid, entry.gid) = self.owner;
        let needed = if entry.kind == Kind::Directory { 0o700 } else { 0o600 };
        entry.mode = entry.mode & 0o1777 | needed;
    }

    /// Gives a new file or directory all attributes but the time. `inherits` says that it has the
    /// group of its directory.
    pub(super) fn set(&self, file: impl AsFd, entry: &Entry, inherits: bool) -> Result<(), Errno> {
        // In this order: a new owner and data that is written take setuid bits and capabilities
        // away.
        let changes_owner = inherits || self.changes_owner(entry);
        if changes_owner {
            fchown(&file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        }
        if changes_owner || self.changes_mode(entry.mode) {
            fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        }
        set_xattrs(file.as_fd(), entry)
    }

    /// Gives a directory that was there already all attributes but the time.
    pub(super) fn reset(&self, file: impl AsFd, entry: &Entry) -> Result<(), Errno> {
        fchown(&file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        set_xattrs(file.as_fd(), entry)
    }

    /// Gives a new link or node its attributes.
    pub(super) fn set_at(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        inherits: bool,
        has_mode: bool,
    ) -> Result<(), Errno> {
        let changes_owner = inherits || self.changes_owner(entry);
        if changes_owner {
            let owner = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
            chownat(directory, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if has_mode && (changes_owner || self.changes_mode(entry.mode)) {
            chmodat(directory, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
        }
        utimensat(directory, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns whether a file does not have its mode from the call that made it.
    pub(super) fn changes_mode(&self, mode: u32) -> bool {
        mode & (self.umask | 0o7000) != 0
    }

    fn changes_owner(&self, entry: &Entry) -> bool {
        (entry.uid, entry.gid) != self.owner
    }
}

/// Sets the time of the last modification, and leaves the last access as it is.
pub(super) fn set_time(file: impl AsFd, mtime: (i64, u32)) -> Result<(), Errno> {
    futimens(file, &times(mtime))
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

fn set_xattrs(file: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
        match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            // The file system or the user cannot have them.
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_kept(name: &[u8]) -> bool {
    name == b"security.capability"
        || name.starts_with(b"user.") && !name.starts_with(b"user.overlay.")
}
