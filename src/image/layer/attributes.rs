//! Attributes: owner, mode, extended attributes and time of a file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat,
    fchmod, fchown, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::archive::{Entry, Kind};
use super::error::UnpackError;
use crate::sys::caller::own_ids;
use crate::sys::privilege::Privilege;

/// Where the real owner of a file is kept that could not be given to it, as `UID:GID:MODE` with the mode
/// in octal.
const OWNER: &str = "user.oci-hooks.owner";

/// What names of our own attributes start with. Layers do not say what we found out.
const OWN: &[u8] = b"user.oci-hooks.";

/// What new files get by themselves, and so need not be given.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    umask: u32,
    owner: (u32, u32),
    privilege: Privilege,
}

impl Attributes {
    pub(super) fn new(privilege: Privilege) -> Self {
        // There is no other way to learn it without changing it for all threads.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let umask = umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
        Attributes {
            umask: umask.unwrap_or(0o777),
            owner: own_ids(),
            privilege: privilege.at_most_own(),
        }
    }

    /// Returns the owner of what the archive has no entry for, if one is to be said.
    pub(super) fn default_owner(&self, wanted: Option<(u32, u32)>) -> (u32, u32) {
        wanted.filter(|_| self.privilege.has_owners()).unwrap_or(self.owner)
    }

    /// Returns whether the device can be made that an entry says. A whiteout can always be.
    pub(super) fn can_make(&self, entry: &Entry) -> bool {
        let is_whiteout = entry.kind == Kind::Character && entry.device == (0, 0);
        is_whiteout || self.privilege.can_make_devices()
    }

    /// Takes from an entry what cannot be given where files have one owner alone: its owner is kept in an
    /// attribute, set-user-ID bits would be those of another user, and what is not to be read or written
    /// would be in the way of that one user, who has to remove it one day.
    ///
    /// # Errors
    ///
    /// Fails if files have owners, but there is none with the id that the entry says.
    pub(super) fn fit(&self, entry: &mut Entry) -> Result<(), UnpackError> {
        if self.privilege.has_owners() {
            return self.check_owner(entry);
        }
        entry.xattrs.retain(|(name, _)| !name.starts_with(OWN));
        let needed = if entry.kind == Kind::Directory { 0o700 } else { 0o600 };
        let mode = entry.mode & 0o1777 | needed;
        if (entry.uid, entry.gid) != (0, 0) || mode != entry.mode {
            let real = format!("{}:{}:{:o}", entry.uid, entry.gid, entry.mode);
            entry.xattrs.push((OWNER.into(), real.into()));
        }
        (entry.uid, entry.gid) = self.owner;
        entry.mode = mode;
        Ok(())
    }

    fn check_owner(&self, entry: &Entry) -> Result<(), UnpackError> {
        // Another name of a file is of the file's owner, whatever it says.
        let (Some(ids), true) = (self.privilege.ids(), entry.kind != Kind::Hardlink) else {
            return Ok(());
        };
        let owners =
            [("user", entry.uid, ids.uids, "subuid"), ("group", entry.gid, ids.gids, "subgid")];
        match owners.into_iter().find(|(_, id, count, _)| id >= count) {
            None => Ok(()),
            Some((what, id, count, file)) => {
                Err(UnpackError::Owner { path: path_of(&entry.path), what, id, count, file })
            }
        }
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
        self.set_xattrs(file.as_fd(), entry)
    }

    /// Gives a directory that was there already all attributes but the time.
    pub(super) fn reset(&self, file: impl AsFd, entry: &Entry) -> Result<(), Errno> {
        fchown(&file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        self.set_xattrs(file.as_fd(), entry)
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

    fn set_xattrs(&self, file: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
        for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
            match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                // The file system or the user cannot have them.
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
                // They would be for a namespace of other ids than there are here, and have no effect.
                Err(Errno::INVAL) if name == CAPABILITY && self.privilege != Privilege::Root => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sets the time of the last modification, and leaves the last access as it is.
pub fn set_time(file: impl AsFd, mtime: (i64, u32)) -> Result<(), Errno> {
    futimens(file, &times(mtime))
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

const CAPABILITY: &[u8] = b"security.capability";

fn is_kept(name: &[u8]) -> bool {
    name == CAPABILITY || name.starts_with(b"user.") && !name.starts_with(b"user.overlay.")
}

pub(super) fn path_of(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path))
}
