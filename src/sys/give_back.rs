//! Giving a directory back to its user after others have worked in it.
//!
//! What they left there belongs to ids that nobody on the host has, may gain somebody else's rights when
//! it is run, or may be a device. The user may change the directory meanwhile and gains nothing by it:
//! nothing is changed but what is theirs, or nobody's, by what the same descriptor shows.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Statx, Uid, chmodat, chownat, fstat,
    lgetxattr_query, openat, removexattr, statat, unlinkat,
};
use rustix::io::Errno;

use super::beneath::open_strictly;
use super::descent::{Bounds, DIRECTORY, Descent, Lister, Pending, look};
use super::fs::{PathContext as _, PathError};

/// Whom a directory is given back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The ids of the user and their group.
    pub owner: (u32, u32),
    /// User and group ids that nobody on the host has, root and the user included: what belongs to them
    /// was made in containers.
    pub private: Range<u32>,
}

/// What was done to a directory, and what could not be done.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of files and directories whose owner or rights were changed.
    pub changed: u64,
    /// The number of devices that were removed, by each of their names.
    pub removed_devices: u64,
    pub problems: Problems,
}

/// The first few errors, and how many there were.
#[derive(Debug, Default)]
pub struct Problems {
    /// The number of all errors.
    pub count: u64,
    /// The first of them. Paths of great length end early.
    pub first: Vec<PathError>,
}

impl Problems {
    const KEPT: usize = 8;

    fn push(&mut self, error: impl FnOnce() -> PathError) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(error());
        }
    }
}

/// Gives the user a directory and what is in it, which is there by this name for messages.
///
/// - What belongs to a private user id gets the user's ids; what is the user's and belongs to a private
///   group id gets the user's group.
/// - From files that are the user's, then, set-user-ID and set-group-ID bits and file capabilities are
///   taken.
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
    // The one that is given may permit nothing, and its position is its owner's.
    let top = openat(directory, c".", DIRECTORY, Mode::empty()).at("open", name)?;
    let mut giver =
        Giver { ids, name, path: Vec::new(), disarmed: HashSet::new(), report: Report::default() };
    // Its mode stays: whoever may not look into it could not before.
    let found = look(top.as_fd()).at("look at", name)?;
    giver.directory(&top, &found, c"");
    let descent = Descent::new(top.as_fd(), Level::new(0)).at("look at", name)?;
    let mut walk = Walk { descent, giver, lister: Lister::new(WAITING), restarts: 0 };
    walk.run();
    Ok(walk.giver.report)
}

/// How often the walk starts anew because somebody moved the directory that it was in.
const MAX_RESTARTS: usize = 16;

/// How many bytes of names of a directory, and of all directories on the way, may wait to be gone into.
const WAITING: Bounds = Bounds { here: 64 << 10, all: 16 << 20 };

/// How much of a path is remembered for messages.
const MAX_PATH_BYTES: usize = 4096;

/// Opened so, a file stays the one that it was when it was opened, and nothing happens to it.
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is known of a directory on the way down.
struct Level {
    pending: Pending,
    /// The length of the path of the one above.
    path_length: usize,
}

impl Level {
    fn new(path_length: usize) -> Self {
        Level { pending: Pending::default(), path_length }
    }
}

struct Walk<'a> {
    descent: Descent<'a, Level>,
    giver: Giver<'a>,
    lister: Lister,
    restarts: usize,
}

impl Walk<'_> {
    fn run(&mut self) {
        loop {
            if self.enter_next() {
                continue;
            }
            let (here, level) = self.descent.here();
            if level.pending.position.is_some() {
                let giver = &mut self.giver;
                let listed = self.lister.list(here, &mut level.pending, |name, kind| {
                    kind == FileType::Directory || giver.entry(here, name) == Next::Enter
                });
                if let Err(error) = listed {
                    self.giver.problem("list", c"", error);
                }
                continue;
            }
            match self.descent.leave() {
                Ok(Some(level)) => self.giver.path.truncate(level.path_length),
                Ok(None) => return,
                Err(error) if self.restarts == MAX_RESTARTS => {
                    self.giver.problem("find the way back from", c"", error);
                    return;
                }
                Err(_) => {
                    self.restarts += 1;
                    self.lister.restart();
                    self.giver.path.clear();
                    self.descent.restart(Level::new(0));
                }
            }
        }
    }

    /// Goes into the next directory that waits, or tells that none does.
    fn enter_next(&mut self) -> bool {
        let (here, level) = self.descent.here();
        let Some(name) = self.lister.pop(&mut level.pending) else { return false };
        let directory = match open_strictly(here, name.as_c_str(), DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            // It is something else by now.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                self.giver.entry(here, &name);
                return true;
            }
            // It is gone, or something is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => return true,
            Err(error) => {
                self.giver.problem("open", &name, error);
                return true;
            }
        };
        let found = match look(directory.as_fd()) {
            Ok(found) => found,
            Err(error) => {
                self.giver.problem("look at", &name, error);
                return true;
            }
        };
        self.giver.directory(&directory, &found, &name);
        let path_length = self.giver.path.len();
        if path_length < MAX_PATH_BYTES {
            self.giver.path.extend_from_slice(name.as_bytes());
            self.giver.path.push(b'/');
        }
        self.descent.enter(directory, &found, Level::new(path_length));
        true
    }
}

impl GiveBack {
    /// Returns whom to give something to that belongs to these.
    fn new_owner(&self, (uid, gid): (u32, u32)) -> Option<(u32, u32)> {
        if self.private.contains(&uid) {
            return Some(self.owner);
        }
        let is_theirs = uid == self.owner.0;
        (is_theirs && self.private.contains(&gid)).then_some((uid, self.owner.1))
    }

    /// Returns whether something belongs to the user, or to nobody on the host.
    fn may_change(&self, uid: u32) -> bool {
        uid == self.owner.0 || self.private.contains(&uid)
    }
}

/// What is to be done with an entry of a directory next.
#[derive(PartialEq, Eq)]
enum Next {
    Nothing,
    Enter,
}

struct Giver<'a> {
    ids: &'a GiveBack,
    name: &'a Path,
    /// That of the directory it is in, from the top, with `/` at the end.
    path: Vec<u8>,
    /// Devices that nobody can use any more, but that have other names.
    disarmed: HashSet<(u64, u64)>,
    report: Report,
}

impl Giver<'_> {
    /// Gives a directory that is open.
    fn directory(&mut self, directory: &OwnedFd, found: &Statx, name: &CStr) {
        if let Some(owner) = self.ids.new_owner((found.stx_uid, found.stx_gid)) {
            let given = give(directory, owner);
            self.done(given, name);
        }
    }

    /// Puts right what has a name in a directory, unless it is a directory.
    fn entry(&mut self, here: BorrowedFd<'_>, name: &CStr) -> Next {
        // Most are as they should be, which their names are enough to see.
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => return Next::Enter,
            Ok(found) if !self.needs_change(here, name, &found) => return Next::Nothing,
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => self.problem("look at", name, error),
        }
        let file = match open_strictly(here, name, PATH_ONLY, Mode::empty()) {
            Ok(file) => file,
            // It is gone, or something is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => return Next::Nothing,
            Err(error) => {
                self.problem("open", name, error);
                return Next::Nothing;
            }
        };
        match fstat(&file) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => return Next::Enter,
            Ok(found) if self.is_device(&found) => self.remove_device(here, name, &file, &found),
            Ok(found) if self.ids.may_change(found.st_uid) => {
                let changed = self.put_right(&file, &found);
                self.done(changed, name);
            }
            Ok(_) => {}
            Err(error) => self.problem("look at", name, error),
        }
        Next::Nothing
    }

    fn needs_change(&self, here: BorrowedFd<'_>, name: &CStr, found: &Stat) -> bool {
        if self.is_device(found) {
            return true;
        }
        self.ids.may_change(found.st_uid)
            && (self.ids.new_owner((found.st_uid, found.st_gid)).is_some()
                || is_file(found) && (found.st_mode & SET_IDS != 0 || has_capabilities(here, name)))
    }

    /// Changes the owner and removes what grants others' permissions. Returns whether it had to.
    fn put_right(&self, file: &OwnedFd, found: &Stat) -> Result<bool, Errno> {
        let owner = self.ids.new_owner((found.st_uid, found.st_gid));
        let mut has_changed = owner.is_some();
        if let Some(owner) = owner {
            give(file, owner)?;
        }
        if !is_file(found) {
            return Ok(has_changed);
        }
        // A descriptor that permits nothing has no other way to its file.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        // The new owner took some of the bits away.
        let mode = fstat(file)?.st_mode;
        if mode & SET_IDS != 0 {
            let rest = Mode::from_raw_mode(mode & 0o7777 & !SET_IDS);
            chmodat(CWD, &*link, rest, AtFlags::empty())?;
            has_changed = true;
        }
        match removexattr(&*link, CAPABILITY) {
            Ok(()) => Ok(true),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(has_changed),
            Err(error) => Err(error),
        }
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

    fn remove_device(&mut self, here: BorrowedFd<'_>, name: &CStr, file: &OwnedFd, found: &Stat) {
        let id = (found.st_dev, found.st_ino);
        // Whoever gives it another name meanwhile keeps nothing that is of use.
        let disarmed = chownat(file, c"", Some(Uid::ROOT), Some(Gid::ROOT), AtFlags::EMPTY_PATH)
            .and_then(|()| {
                let link = format!("/proc/self/fd/{}", file.as_raw_fd());
                chmodat(CWD, link, Mode::empty(), AtFlags::empty())
            });
        if let Err(error) = disarmed {
            return self.problem("disarm the device", name, error);
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
            Err(error) => self.problem("remove the device", name, error),
        }
    }

    fn done(&mut self, result: Result<bool, Errno>, name: &CStr) {
        match result {
            Ok(has_changed) => self.report.changed += u64::from(has_changed),
            Err(error) => self.problem("give back", name, error),
        }
    }

    fn problem(&mut self, action: &'static str, name: &CStr, error: Errno) {
        let (top, path) = (self.name, &self.path);
        self.report.problems.push(|| {
            let mut path = top.join(OsStr::from_bytes(path));
            if !name.is_empty() {
                path.push(OsStr::from_bytes(name.to_bytes()));
            }
            PathError::new(action, &path, error)
        });
    }
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

/// Returns whether a file has capabilities, or may have some: it is then opened to be sure.
fn has_capabilities(here: BorrowedFd<'_>, name: &CStr) -> bool {
    let found = match capability_bytes(here, name) {
        Err(Errno::NOSYS) => capability_bytes_by_link(here, name),
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
fn capability_bytes(here: BorrowedFd<'_>, name: &CStr) -> Result<usize, Errno> {
    // The number is that of all processors that Linux has had since it numbers them alike.
    const GETXATTRAT: libc::c_long = 464;
    let arguments = XattrArguments { value: 0, size: 0, flags: 0 };
    // SAFETY: both names are strings with their end, the structure lives through the call, and its
    // size is given; the kernel only reads them and, without a buffer, writes nothing.
    let result = unsafe {
        libc::syscall(
            GETXATTRAT,
            here.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            CAPABILITY.as_ptr(),
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
fn capability_bytes_by_link(here: BorrowedFd<'_>, name: &CStr) -> Result<usize, Errno> {
    // The longest name takes 255 bytes.
    let mut path = [0_u8; 300];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/fd/{}/", here.as_raw_fd())
        .and_then(|()| rest.write_all(name.to_bytes_with_nul()))
        .map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    lgetxattr_query(path, CAPABILITY)
}

#[cfg(test)]
mod tests;
