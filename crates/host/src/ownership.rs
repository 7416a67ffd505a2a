//! Restores the ownership of a directory after containers have worked in it, as `chown -R` does, and removes the
//! set-user-ID bits, file capabilities and device nodes that they left. `container-hook` calls it after each job.
//!
//! The user may change the directory meanwhile, but gains nothing by it: only files of the user or of private ids
//! are changed, by the descriptor through which their owner was checked. Files of other users are not changed.

use std::ffi::{CStr, OsStr};
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::PathError;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Statx, Uid, chmodat, chownat, fstat, lgetxattr_query,
    removexattr, statat, unlinkat,
};
use rustix::io::Errno;

use super::file_user::{FileUser, is_root};
use super::share;
pub use super::walk::WalkProblems;
use super::walk::{AccessDeniedAction, EntryAction, TreeVisitor, WalkTrace, open_entry, walk};

/// The owner to restore, and the ids whose files the owner gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOwners {
    /// User and group id of the new owner.
    pub owner: (u32, u32),
    /// User and group ids that no user of the host has, neither root nor the owner: their files were
    /// created in containers.
    pub private_ids: Range<u32>,
    /// Set if access control lists may have entries of private ids, added by [`share`].
    pub has_acls: bool,
}

/// Default of `kernel.overflowuid`: the id shown for ids that the user namespace does not map.
const OVERFLOW_ID: u32 = 65_534;

/// The changes made to a directory, and the errors.
#[derive(Debug, Default)]
pub struct OwnershipReport {
    /// Number of files and directories whose owner or permissions were changed.
    pub changed: u64,
    /// Number of removed device nodes; each hard link counts.
    pub removed_devices: usize,
    pub problems: WalkProblems,
}

/// Restores the user's ownership of a directory and its content; the name is for messages.
///
/// - Files of a private user id get the user's ids; files of the user with a private group id get the
///   user's group.
/// - All files of the user then lose set-user-ID and set-group-ID bits, file capabilities, and entries of
///   private ids in access control lists.
/// - Devices of the user or of a private id are removed, and those of root without permissions; the character
///   device 0:0, a whiteout of overlays, stays.
///
/// Other files, and mounts in the directory, are not changed. Errors of single files are part of the report;
/// files that are removed meanwhile are no errors.
///
/// # Errors
///
/// Fails if the directory itself cannot be opened.
pub fn restore_ownership(
    directory: BorrowedFd<'_>,
    name: &Path,
    owners: &FileOwners,
) -> Result<OwnershipReport, PathError> {
    let mut restorer = OwnerRestorer { owners, report: OwnershipReport::default() };
    let problems = walk(directory, name, &mut restorer)?;
    Ok(OwnershipReport { problems, ..restorer.report })
}

impl FileOwners {
    /// Returns the new owner of a file with these ids, if it changes.
    fn new_owner(&self, (uid, gid): (u32, u32)) -> Option<(u32, u32)> {
        if self.private_ids.contains(&uid) {
            return Some(self.owner);
        }
        // The overflow id may be any of the user's groups that are not mapped.
        let is_theirs = uid == self.owner.0 && gid != OVERFLOW_ID;
        (is_theirs && self.private_ids.contains(&gid)).then_some((uid, self.owner.1))
    }

    /// Returns whether files of a user id may be changed: it is the new owner's, or a private id.
    fn can_change(&self, uid: u32) -> bool {
        uid == self.owner.0 || self.private_ids.contains(&uid)
    }

    /// Returns whether a file is a device node to remove: one of the user or of a private id, or
    /// one of root with mode 0. Before a device is removed, it is given to root with mode 0, so
    /// that its other hard links are useless; such links and devices left by an interrupted call
    /// are removed too.
    fn removes_device(&self, found: &Stat) -> bool {
        let is_device = match FileType::from_raw_mode(found.st_mode) {
            FileType::BlockDevice => true,
            FileType::CharacterDevice => found.st_rdev != 0,
            _ => false,
        };
        let is_disarmed = is_root(found.st_uid) && found.st_mode & 0o7777 == 0;
        is_device && (is_disarmed || self.can_change(found.st_uid))
    }

    /// Changes the owner of a file with these ids if needed; returns whether it did.
    fn restore_owner(&self, file: &OwnedFd, ids: (u32, u32)) -> Result<bool, Errno> {
        let Some(owner) = self.new_owner(ids) else { return Ok(false) };
        match set_owner(file, owner) {
            Err(Errno::PERM) => {}
            changed => return changed.map(|()| true),
        }
        // Root of a user namespace may not change a file whose group is not mapped, as after creating it in a
        // set-group-ID directory of such a group, but the file's owner may change the group.
        let user = FileUser { uid: ids.0, gid: owner.1 };
        let group = Some(Gid::from_raw(owner.1));
        match user.run_as_user(|| chownat(file, c"", None, group, AtFlags::EMPTY_PATH)) {
            Ok(Ok(())) => set_owner(file, owner).map(|()| true),
            _ => Err(Errno::PERM),
        }
    }
}

struct OwnerRestorer<'a> {
    owners: &'a FileOwners,
    report: OwnershipReport,
}

impl TreeVisitor for OwnerRestorer<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        found: &Statx,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) {
        let changed = self.restore_directory(directory, (found.stx_uid, found.stx_gid));
        self.record_change(changed, found.stx_uid, name, trace);
    }

    fn entry(
        &mut self,
        here: BorrowedFd<'_>,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) -> EntryAction {
        // Most files need no change, which can be seen without opening them.
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => {
                return EntryAction::Enter;
            }
            Ok(found) if !self.needs_change(here, name, &found) => return EntryAction::Nothing,
            _ => {}
        }
        let Some((file, found)) = trace.open_entry(here, name) else { return EntryAction::Nothing };
        if FileType::from_raw_mode(found.st_mode).is_dir() {
            return EntryAction::Enter;
        }
        if self.owners.removes_device(&found) {
            self.remove_device(here, name, &file, &found, trace);
        } else if self.owners.can_change(found.st_uid) {
            let changed = self.restore_file(&file, &found);
            self.record_change(changed, found.st_uid, name, trace);
        }
        EntryAction::Nothing
    }

    fn handle_access_denied(&mut self, here: BorrowedFd<'_>, name: &CStr) -> AccessDeniedAction {
        let Ok((file, found)) = open_entry(here, name) else { return AccessDeniedAction::Report };
        let uid = found.st_uid;
        match self.owners.restore_owner(&file, (uid, found.st_gid)) {
            Ok(true) => {
                self.report.changed += 1;
                AccessDeniedAction::Retry
            }
            Ok(false) if !self.owners.can_change(uid) => AccessDeniedAction::Skip,
            Err(error) if is_foreign(uid, error) => AccessDeniedAction::Skip,
            _ => AccessDeniedAction::Report,
        }
    }
}

impl OwnerRestorer<'_> {
    fn needs_change(&self, here: BorrowedFd<'_>, name: &CStr, found: &Stat) -> bool {
        let has_changed = || {
            self.owners.new_owner((found.st_uid, found.st_gid)).is_some()
                || is_file(found)
                    && (found.st_mode & SET_IDS != 0 || may_have_attribute(here, name, CAPABILITY))
                || self.may_have_acl(found) && may_have_attribute(here, name, share::ACCESS)
        };
        self.owners.removes_device(found) || self.owners.can_change(found.st_uid) && has_changed()
    }

    /// Changes the owner, and removes private ACL entries; the mode is kept. Returns whether the directory was
    /// changed.
    fn restore_directory(
        &self,
        directory: &OwnedFd,
        (uid, gid): (u32, u32),
    ) -> Result<bool, Errno> {
        let owners = self.owners;
        let is_chowned = owners.restore_owner(directory, (uid, gid))?;
        let is_revoked = owners.has_acls
            && owners.can_change(uid)
            && share::revoke_from_directory(directory, owners.owner.0, &owners.private_ids)?;
        Ok(is_chowned || is_revoked)
    }

    /// Changes the owner, and removes set-user-ID and set-group-ID bits, capabilities and private ACL entries.
    /// Returns whether the file was changed.
    fn restore_file(&self, file: &OwnedFd, found: &Stat) -> Result<bool, Errno> {
        let mut has_changed = self.owners.restore_owner(file, (found.st_uid, found.st_gid))?;
        // These calls do not accept `O_PATH` descriptors, but the path of one in /proc.
        let link = descriptor_path(file);
        if self.may_have_acl(found) {
            has_changed |=
                share::revoke_from_file(&link, self.owners.owner.0, &self.owners.private_ids)?;
        }
        if !is_file(found) {
            return Ok(has_changed);
        }
        // Changing the owner has cleared some of the bits.
        let mode = fstat(file)?.st_mode;
        if mode & SET_IDS != 0 {
            let rest = Mode::from_raw_mode(mode & 0o7777 & !SET_IDS);
            chmodat(CWD, &*link, rest, AtFlags::empty())?;
            has_changed = true;
        }
        match removexattr(&*link, CAPABILITY) {
            Ok(()) => has_changed = true,
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
        Ok(has_changed)
    }

    /// Returns whether a file may have an ACL with private ids: symbolic links have no ACL.
    fn may_have_acl(&self, found: &Stat) -> bool {
        self.owners.has_acls && !FileType::from_raw_mode(found.st_mode).is_symlink()
    }

    fn remove_device(
        &mut self,
        here: BorrowedFd<'_>,
        name: &CStr,
        file: &OwnedFd,
        found: &Stat,
        trace: &mut WalkTrace<'_>,
    ) {
        // A hard link that is created meanwhile is useless without permissions.
        let disarmed = set_owner(file, (0, 0))
            .and_then(|()| chmodat(CWD, descriptor_path(file), Mode::empty(), AtFlags::empty()));
        if let Err(error) = disarmed {
            return trace.problem("remove the permissions of the device", name, error);
        }
        let is_same = statat(here, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino));
        if !is_same {
            return;
        }
        match unlinkat(here, name, AtFlags::empty()) {
            Ok(()) => self.report.removed_devices += 1,
            Err(Errno::NOENT) => {}
            Err(error) => trace.problem("remove the device", name, error),
        }
    }

    fn record_change(
        &mut self,
        result: Result<bool, Errno>,
        uid: u32,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) {
        match result {
            Ok(has_changed) => self.report.changed += u64::from(has_changed),
            Err(error) if is_foreign(uid, error) => {}
            Err(error) => trace.problem("restore the ownership of", name, error),
        }
    }
}

/// Returns whether changing a file failed because it belongs to a user of the host whose id the user namespace does
/// not map.
fn is_foreign(uid: u32, error: Errno) -> bool {
    uid == OVERFLOW_ID && error == Errno::PERM
}

const SET_IDS: u32 = 0o6000;

const CAPABILITY: &CStr = c"security.capability";

fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

fn set_owner(file: &OwnedFd, (uid, gid): (u32, u32)) -> Result<(), Errno> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// Returns whether a file has an extended attribute, or may have it after an error: it is then opened to be sure.
fn may_have_attribute(here: BorrowedFd<'_>, name: &CStr, attribute: &CStr) -> bool {
    let found = match attribute_bytes(here, name, attribute) {
        Err(Errno::NOSYS) => attribute_bytes_by_link(here, name, attribute),
        found => found,
    };
    !matches!(found, Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT))
}

/// The argument of `getxattrat` (`struct xattr_args` of `linux/xattr.h`).
#[repr(C)]
struct XattrArguments {
    value: u64,
    size: u32,
    flags: u32,
}

/// Returns the size of an extended attribute by a single call, `getxattrat` (Linux 6.13).
#[expect(unsafe_code, reason = "rustix has no getxattrat")]
fn attribute_bytes(here: BorrowedFd<'_>, name: &CStr, attribute: &CStr) -> Result<usize, Errno> {
    // New system calls have the same number on all architectures.
    const GETXATTRAT: libc::c_long = 464;
    let arguments = XattrArguments { value: 0, size: 0, flags: 0 };
    // SAFETY: all names are NUL-terminated, the structure lives through the call, and its
    // size is given; the kernel only reads them and, without a buffer, writes nothing.
    let result = unsafe {
        libc::syscall(
            GETXATTRAT,
            here.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const arguments,
            size_of::<XattrArguments>(),
        )
    };
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// Returns the size of an extended attribute on older kernels, by a path in `/proc/self/fd`, which takes ten times
/// as long.
fn attribute_bytes_by_link(
    here: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
) -> Result<usize, Errno> {
    let path = Path::new(&descriptor_path(here)).join(OsStr::from_bytes(name.to_bytes()));
    lgetxattr_query(path, attribute)
}

#[cfg(test)]
mod tests;
