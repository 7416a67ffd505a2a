//! Giving a directory back to its user after others have worked in it.
//!
//! What they left there belongs to ids that nobody on the host has, may gain somebody else's rights when
//! it is run, or may be a device. The user may change the directory meanwhile and gains nothing by it:
//! nothing is changed but what is theirs, or nobody's, by what the same descriptor shows.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Statx, Uid, chmodat, chownat, fstat, lgetxattr_query,
    removexattr, statat, unlinkat,
};
use rustix::io::Errno;

use super::beneath::open_strictly;
use super::caller::FileUser;
use super::fs::PathError;
use super::lend::{self, Unlent};
pub use super::walk::Problems;
use super::walk::{Closed, Next, PATH_ONLY, Trace, Visitor, walk};

/// Whom a directory is given back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The ids of the user and their group.
    pub owner: (u32, u32),
    /// User and group ids that nobody on the host has, root and the user included: what belongs to them
    /// was made in containers.
    pub private: Range<u32>,
    /// Whether files may have entries of such ids in their access control lists, by [`lend`](super::lend).
    pub has_lists: bool,
}

/// What ids are seen as that the user namespace does not map, if nobody changed the kernel's setting.
const OVERFLOW_ID: u32 = 65_534;

/// What was done to a directory, and what could not be done.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of files and directories whose owner or rights were changed.
    pub changed: u64,
    /// The number of devices that were removed, by each of their names.
    pub removed_devices: u64,
    pub problems: Problems,
}

/// Gives the user a directory and what is in it, which is there by this name for messages.
///
/// - What belongs to a private user id gets the user's ids; what is the user's and belongs to a private
///   group id gets the user's group.
/// - From files that are the user's, then, set-user-ID and set-group-ID bits and file capabilities are
///   taken, and entries of private ids in access control lists.
/// - Devices that are the user's or of a private id are removed, but not the character device 0:0, a
///   whiteout of overlays.
///
/// Everything else is left alone, and so is what is mounted in the directory. An error about one file is
/// part of the report; what somebody removes meanwhile is none.
///
/// # Errors
///
/// Fails if the directory itself cannot be opened.
pub fn give_back(
    directory: BorrowedFd<'_>,
    name: &Path,
    ids: &GiveBack,
) -> Result<Report, PathError> {
    let mut giver = Giver { ids, disarmed: HashSet::new(), report: Report::default() };
    let problems = walk(directory, name, &mut giver)?;
    Ok(Report { problems, ..giver.report })
}

impl GiveBack {
    /// Returns whom to give something to that belongs to these.
    fn new_owner(&self, (uid, gid): (u32, u32)) -> Option<(u32, u32)> {
        if self.private.contains(&uid) {
            return Some(self.owner);
        }
        // A group that is not mapped looks like one that is: that of a user's own file may be any of theirs.
        let is_theirs = uid == self.owner.0 && gid != OVERFLOW_ID;
        (is_theirs && self.private.contains(&gid)).then_some((uid, self.owner.1))
    }

    /// Returns whether something belongs to the user, or to nobody on the host.
    fn may_change(&self, uid: u32) -> bool {
        uid == self.owner.0 || self.private.contains(&uid)
    }
}

struct Giver<'a> {
    ids: &'a GiveBack,
    /// Devices that nobody can use any more, but that have other names.
    disarmed: HashSet<(u64, u64)>,
    report: Report,
}

impl Visitor for Giver<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        found: &Statx,
        name: &CStr,
        trace: &mut Trace<'_>,
    ) {
        // Its mode stays: whoever may not look into it could not before.
        let owner = self.ids.new_owner((found.stx_uid, found.stx_gid));
        let given = owner.map_or(Ok(false), |owner| self.give(directory, found.stx_uid, owner));
        let is_foreign = is_foreign(found.stx_uid, given);
        self.done(given, found.stx_uid, name, trace);
        if self.ids.has_lists && self.ids.may_change(found.stx_uid) && !is_foreign {
            let unlent =
                lend::take_from_directory(directory.as_fd(), self.ids.owner.0, &self.ids.private);
            self.unlent(unlent, owner.is_none(), name, trace);
        }
    }

    fn entry(&mut self, here: BorrowedFd<'_>, name: &CStr, trace: &mut Trace<'_>) -> Next {
        // Most are as they should be, which their names are enough to see.
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => return Next::Enter,
            Ok(found) if !self.needs_change(here, name, &found) => return Next::Nothing,
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => trace.problem("look at", name, error),
        }
        let file = match open_strictly(here, name, PATH_ONLY, Mode::empty()) {
            Ok(file) => file,
            // It is gone, or something is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => return Next::Nothing,
            Err(error) => {
                trace.problem("open", name, error);
                return Next::Nothing;
            }
        };
        match fstat(&file) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => return Next::Enter,
            Ok(found) if self.is_device(&found) => {
                self.remove_device(here, name, &file, &found, trace);
            }
            Ok(found) if self.ids.may_change(found.st_uid) => {
                let changed = self.put_right(&file, &found);
                self.done(changed, found.st_uid, name, trace);
            }
            Ok(_) => {}
            Err(error) => trace.problem("look at", name, error),
        }
        Next::Nothing
    }

    fn closed(&mut self, here: BorrowedFd<'_>, name: &CStr) -> Closed {
        let opened = open_strictly(here, name, PATH_ONLY, Mode::empty());
        let found = opened.and_then(|file| fstat(&file).map(|found| (file, found)));
        let Ok((file, found)) = found else { return Closed::Report };
        match self.ids.new_owner((found.st_uid, found.st_gid)) {
            Some(owner) => match self.give(&file, found.st_uid, owner) {
                Ok(_) => {
                    self.report.changed += 1;
                    Closed::Retry
                }
                given if is_foreign(found.st_uid, given) => Closed::Leave,
                Err(_) => Closed::Report,
            },
            None if self.ids.may_change(found.st_uid) => Closed::Report,
            None => Closed::Leave,
        }
    }
}

impl Giver<'_> {
    fn needs_change(&self, here: BorrowedFd<'_>, name: &CStr, found: &Stat) -> bool {
        if self.is_device(found) {
            return true;
        }
        let has_changed = || {
            self.ids.new_owner((found.st_uid, found.st_gid)).is_some()
                || is_file(found)
                    && (found.st_mode & SET_IDS != 0 || may_have(here, name, CAPABILITY))
                || self.may_have_list(found) && may_have(here, name, lend::ACCESS)
        };
        self.ids.may_change(found.st_uid) && has_changed()
    }

    /// Changes the owner and removes what grants others' permissions. Returns whether it had to.
    fn put_right(&self, file: &OwnedFd, found: &Stat) -> Result<bool, Errno> {
        let owner = self.ids.new_owner((found.st_uid, found.st_gid));
        let mut has_changed = owner.is_some();
        if let Some(owner) = owner {
            self.give(file, found.st_uid, owner)?;
        }
        // A descriptor that permits nothing has no other way to its file.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        if self.may_have_list(found) {
            has_changed |= lend::take_from_file(&link, self.ids.owner.0, &self.ids.private)?
                == Unlent::Changed;
        }
        if !is_file(found) {
            return Ok(has_changed);
        }
        // The new owner took some of the bits away.
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

    /// Returns whether a file is of a kind that gets a list from its directory.
    fn may_have_list(&self, found: &Stat) -> bool {
        self.ids.has_lists && !FileType::from_raw_mode(found.st_mode).is_symlink()
    }

    /// Gives a file that belongs to a user, and perhaps to a group that the user namespace does not map, as
    /// what is made in a set-group-ID directory of such a group does.
    fn give(&self, file: &OwnedFd, uid: u32, owner: (u32, u32)) -> Result<bool, Errno> {
        let given = give(file, owner);
        if given != Err(Errno::PERM) || !self.ids.has_lists {
            return given;
        }
        // Of such a file the kernel lets root of the namespace change nothing, but its owner the group.
        let user = FileUser { uid, gid: owner.1 };
        let group = Some(Gid::from_raw(owner.1));
        let taken = user.act(|| chownat(file, c"", None, group, AtFlags::EMPTY_PATH));
        if !matches!(taken, Ok(Ok(()))) {
            return given;
        }
        give(file, owner)
    }

    fn is_device(&self, found: &Stat) -> bool {
        let is_device = match FileType::from_raw_mode(found.st_mode) {
            FileType::BlockDevice => true,
            FileType::CharacterDevice => found.st_rdev != 0,
            _ => false,
        };
        let file = (found.st_dev, found.st_ino);
        is_device && (self.ids.may_change(found.st_uid) || self.disarmed.contains(&file))
    }

    fn remove_device(
        &mut self,
        here: BorrowedFd<'_>,
        name: &CStr,
        file: &OwnedFd,
        found: &Stat,
        trace: &mut Trace<'_>,
    ) {
        let id = (found.st_dev, found.st_ino);
        // Whoever gives it another name meanwhile keeps nothing that is of use.
        let disarmed = chownat(file, c"", Some(Uid::ROOT), Some(Gid::ROOT), AtFlags::EMPTY_PATH)
            .and_then(|()| {
                let link = format!("/proc/self/fd/{}", file.as_raw_fd());
                chmodat(CWD, link, Mode::empty(), AtFlags::empty())
            });
        if let Err(error) = disarmed {
            return trace.problem("disarm the device", name, error);
        }
        if found.st_nlink > 1 {
            self.disarmed.insert(id);
        }
        let is_same = statat(here, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|now| (now.st_dev, now.st_ino) == id);
        if !is_same {
            return;
        }
        match unlinkat(here, name, AtFlags::empty()) {
            Ok(()) => self.report.removed_devices += 1,
            Err(Errno::NOENT) => {}
            Err(error) => trace.problem("remove the device", name, error),
        }
    }

    fn unlent(
        &mut self,
        result: Result<Unlent, Errno>,
        counts: bool,
        name: &CStr,
        trace: &mut Trace<'_>,
    ) {
        match result {
            Ok(unlent) => {
                self.report.changed += u64::from(counts && unlent == Unlent::Changed);
            }
            Err(error) => trace.problem("restore the permissions of", name, error),
        }
    }

    fn done(&mut self, result: Result<bool, Errno>, uid: u32, name: &CStr, trace: &mut Trace<'_>) {
        match result {
            Ok(has_changed) => self.report.changed += u64::from(has_changed),
            Err(_) if is_foreign(uid, result) => {}
            Err(error) => trace.problem("give back", name, error),
        }
    }
}

/// Returns whether a file was no private id's but somebody's whom the user namespace does not map: the
/// kernel then lets nobody in it change the file.
fn is_foreign(uid: u32, given: Result<bool, Errno>) -> bool {
    uid == OVERFLOW_ID && matches!(given, Err(Errno::PERM | Errno::INVAL | Errno::OVERFLOW))
}

/// The bits of a mode by which a program runs as its owner or group.
const SET_IDS: u32 = 0o6000;

const CAPABILITY: &CStr = c"security.capability";

fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

fn give(file: &OwnedFd, (uid, gid): (u32, u32)) -> Result<bool, Errno> {
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    chownat(file, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
    Ok(true)
}

/// Returns whether a file has an attribute, or may have it: it is then opened to be sure.
fn may_have(here: BorrowedFd<'_>, name: &CStr, attribute: &CStr) -> bool {
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

/// Asks for the size of the attribute with one call, which Linux has since 6.13: most files of a
/// directory need no other.
#[expect(unsafe_code, reason = "rustix has no getxattrat")]
fn attribute_bytes(here: BorrowedFd<'_>, name: &CStr, attribute: &CStr) -> Result<usize, Errno> {
    // The number is that of all processors that Linux has had since it numbers them alike.
    const GETXATTRAT: libc::c_long = 464;
    let arguments = XattrArguments { value: 0, size: 0, flags: 0 };
    // SAFETY: all names are strings with their end, the structure lives through the call, and its
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

/// Does the same on older kernels, by a path that leads through the descriptor.
fn attribute_bytes_by_link(
    here: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
) -> Result<usize, Errno> {
    // The longest name takes 255 bytes.
    let mut path = [0_u8; 300];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/fd/{}/", here.as_raw_fd())
        .and_then(|()| rest.write_all(name.to_bytes_with_nul()))
        .map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    lgetxattr_query(path, attribute)
}

#[cfg(test)]
mod tests;
