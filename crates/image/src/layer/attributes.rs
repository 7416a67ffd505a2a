//! Sets owner, mode, extended attributes and time of unpacked files, as far as this process may.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use oci_hooks_host::file_user::own_ids;
use oci_hooks_host::privilege::Privilege;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat,
    fchmod, fchown, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::archive::{TarEntry, TarEntryKind};
use super::error::UnpackError;

/// Extended attribute with the owner and mode of a file in the layer, as `UID:GID:MODE` with an
/// octal mode. It is set if this process cannot set owners, so that all files belong to its own
/// user; it is omitted if the layer's owner is root and the mode is unchanged.
const OWNER: &str = "user.oci-hooks.owner";

/// Prefix of extended attributes that this program sets itself. Without subordinate ids, those in a
/// layer are dropped.
const OWN: &[u8] = b"user.oci-hooks.";

/// Sets the attributes of unpacked files, and knows which ones new files have by default and need
/// no call.
#[derive(Clone, Copy, Debug)]
pub struct FileAttributes {
    umask: u32,
    owner: (u32, u32),
    privilege: Privilege,
}

impl FileAttributes {
    pub(super) fn new(privilege: Privilege) -> Self {
        // Reading the umask in any other way would change it for all threads.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let umask = umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
        FileAttributes {
            umask: umask.unwrap_or(0o777),
            owner: own_ids(),
            privilege: privilege.limit_to_own(),
        }
    }

    /// Returns the owner of directories without an entry in the archive.
    pub(super) fn default_owner(&self, wanted: Option<(u32, u32)>) -> (u32, u32) {
        wanted.filter(|_| self.privilege.has_owners()).unwrap_or(self.owner)
    }

    /// Returns whether the device of an entry can be created. Whiteouts always can.
    pub(super) fn can_make(&self, entry: &TarEntry) -> bool {
        let is_whiteout = entry.kind == TarEntryKind::Character && entry.device == (0, 0);
        is_whiteout || self.privilege.can_make_devices()
    }

    /// Adapts an entry if this process can create only files of its own user. The layer's owner and
    /// mode are kept in an extended attribute, set-user-ID and set-group-ID bits are dropped, and
    /// the user gets access to every file, to be able to remove it.
    ///
    /// # Errors
    ///
    /// Fails if this process can set owners, but the entry's user or group is not mapped.
    pub(super) fn adapt_owner(&self, entry: &mut TarEntry) -> Result<(), UnpackError> {
        if self.privilege.has_owners() {
            return self.check_owner(entry);
        }
        entry.xattrs.retain(|(name, _)| !name.starts_with(OWN));
        let needed = if entry.kind == TarEntryKind::Directory { 0o700 } else { 0o600 };
        let mode = entry.mode & 0o1777 | needed;
        if (entry.uid, entry.gid) != (0, 0) || mode != entry.mode {
            let real = format!("{}:{}:{:o}", entry.uid, entry.gid, entry.mode);
            entry.xattrs.push((OWNER.into(), real.into()));
        }
        (entry.uid, entry.gid) = self.owner;
        entry.mode = mode;
        Ok(())
    }

    fn check_owner(&self, entry: &TarEntry) -> Result<(), UnpackError> {
        // A hard link has the owner of its target, whatever its entry says.
        let (Some(ids), true) = (self.privilege.ids(), entry.kind != TarEntryKind::Hardlink) else {
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

    /// Sets all attributes of a new file or directory but the time. `inherits` is set if the file
    /// has got the group of its directory.
    pub(super) fn set(
        &self,
        file: impl AsFd,
        entry: &TarEntry,
        inherits: bool,
    ) -> Result<(), Errno> {
        // The order matters: a new owner and written data clear setuid bits and capabilities.
        let changes_owner = inherits || self.changes_owner(entry);
        if changes_owner {
            fchown(&file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        }
        if changes_owner || self.changes_mode(entry.mode) {
            fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        }
        self.set_xattrs(file.as_fd(), entry)
    }

    /// Sets all attributes of an existing directory but the time.
    pub(super) fn reset(&self, file: impl AsFd, entry: &TarEntry) -> Result<(), Errno> {
        fchown(&file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        self.set_xattrs(file.as_fd(), entry)
    }

    /// Sets owner, mode and time of a new symlink, device or FIFO by its name. `has_mode` is not
    /// set for a symlink, which has no mode.
    pub(super) fn set_at(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        entry: &TarEntry,
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

    /// Returns whether a file needs a call to get this mode after its creation.
    pub(super) fn changes_mode(&self, mode: u32) -> bool {
        mode & (self.umask | 0o7000) != 0
    }

    fn changes_owner(&self, entry: &TarEntry) -> bool {
        (entry.uid, entry.gid) != self.owner
    }

    fn set_xattrs(&self, file: BorrowedFd<'_>, entry: &TarEntry) -> Result<(), Errno> {
        for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
            match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                // The file system or the user does not support the attribute.
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
                // Such capabilities are for a namespace with other ids, and have no effect here.
                Err(Errno::INVAL) if name == CAPABILITY && self.privilege != Privilege::Root => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sets the modification time, and leaves the access time unchanged.
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
