//! Lending a directory to another user of the same user namespace, by access control lists: what is in it,
//! and what is made there later by either, both can use. [`give_back`](super::give_back) ends it.
//!
//! The kernel maps no owners in mounts that an ordinary user makes, so that a container whose program is
//! not root sees files that are root's.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, Statx, XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat,
    getxattr, setxattr, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::beneath::open_strictly;
use super::fs::PathError;
use super::fs::acl::ALL;
use super::posix_acl::Acl;
use super::walk::{Closed, Next, PATH_ONLY, Problems, Trace, Visitor, walk};

/// The attribute by which a file is used.
pub(super) const ACCESS: &CStr = c"system.posix_acl_access";

/// That of a directory by which new files in it are.
const DEFAULT: &CStr = c"system.posix_acl_default";

/// The most that a list of ours has room for: who has made longer ones did so by hand.
const MAX_LIST_BYTES: usize = 4096;

/// To whom a directory is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lend {
    /// The user's id.
    pub uid: u32,
    /// The id of the user whose the directory is.
    pub owner: u32,
    /// Further ids whose files there are lent too: other containers made them.
    pub private: Range<u32>,
}

/// What was lent, and what could not be.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of files and directories.
    pub lent: u64,
    pub problems: Problems,
}

/// Lets a user do with a directory and all that is in it what its owners may, and both with what either
/// makes there later. The name is for messages.
///
/// An error about one file is part of the report; what somebody removes meanwhile is none.
///
/// # Errors
///
/// Fails if the directory cannot be opened, or if its file system has no access control lists.
pub fn lend(directory: BorrowedFd<'_>, name: &Path, to: &Lend) -> Result<Report, PathError> {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    if getxattr(&*link, ACCESS, &mut [0; MAX_LIST_BYTES][..]) == Err(Errno::NOTSUP) {
        let text = format!(
            "its file system has no POSIX access control lists: expected one such as ext4, xfs, btrfs \
             or tmpfs, or a container that runs as root (`--user 0`) instead of user {}",
            to.uid
        );
        return Err(PathError::new("lend", name, io::Error::other(text)));
    }
    let mut lender = Lender { to, lent: 0 };
    let problems = walk(directory, name, &mut lender)?;
    Ok(Report { lent: lender.lent, problems })
}

/// Lets those to whom the directory of a file is lent read and write it too, as its owner may: whoever made
/// the file may have permitted its group less, which permits them no more. One whose directory is lent to
/// nobody, one of somebody else, and what is no file stays as it is.
///
/// # Errors
///
/// Fails if the file's list cannot be read or written.
pub fn lend_made(file: BorrowedFd<'_>) -> io::Result<()> {
    let found = fstat(file)?;
    let is_own = found.st_uid == geteuid().as_raw();
    if !is_own || FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Some(mut access) = read_list(|buffer| getxattr(&*link, ACCESS, buffer))? else {
        return Ok(());
    };
    if access.grant_users(access.owner()) {
        setxattr(&*link, ACCESS, &access.to_attribute(), XattrFlags::empty())?;
    }
    Ok(())
}

/// What was done to take entries from a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlent {
    Unchanged,
    Changed,
}

struct Lender<'a> {
    to: &'a Lend,
    lent: u64,
}

impl Visitor for Lender<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        found: &Statx,
        name: &CStr,
        trace: &mut Trace<'_>,
    ) {
        if self.is_lent(found.stx_uid) {
            let lent = self.lend_directory(directory, u32::from(found.stx_mode));
            self.done(lent, name, trace);
        }
    }

    fn entry(&mut self, here: BorrowedFd<'_>, name: &CStr, trace: &mut Trace<'_>) -> Next {
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
            Ok(found) => match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => return Next::Enter,
                FileType::RegularFile if self.is_lent(found.st_uid) => {
                    let lent = self.lend_file(&file, found.st_mode);
                    self.done(lent, name, trace);
                }
                _ => {}
            },
            Err(error) => trace.problem("look at", name, error),
        }
        Next::Nothing
    }

    fn closed(&mut self, here: BorrowedFd<'_>, name: &CStr) -> Closed {
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if !self.is_lent(found.st_uid) => Closed::Leave,
            _ => Closed::Report,
        }
    }
}

impl Lender<'_> {
    fn is_lent(&self, uid: u32) -> bool {
        uid == self.to.owner || self.to.private.contains(&uid)
    }

    fn lend_directory(&self, directory: &OwnedFd, mode: u32) -> Result<(), Errno> {
        let read = |name| read_list(|buffer| fgetxattr(directory, name, buffer));
        let write =
            |name, acl: &Acl| fsetxattr(directory, name, &acl.to_attribute(), XattrFlags::empty());
        let mut access = read(ACCESS)?.unwrap_or_else(|| Acl::of_mode(mode));
        let mut default = match read(DEFAULT)? {
            Some(default) => default,
            None => access.without_names(),
        };
        access.grant(self.to.uid, access.owner());
        // Of what either makes the other may do everything; new files have less by their modes.
        for uid in [self.to.owner, self.to.uid] {
            default.grant(uid, ALL);
        }
        write(ACCESS, &access)?;
        write(DEFAULT, &default)
    }

    fn lend_file(&self, file: &OwnedFd, mode: u32) -> Result<(), Errno> {
        // A descriptor that permits nothing has no other way to its file.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let access = read_list(|buffer| getxattr(&*link, ACCESS, buffer))?;
        let mut access = access.unwrap_or_else(|| Acl::of_mode(mode));
        access.grant(self.to.uid, access.owner());
        setxattr(&*link, ACCESS, &access.to_attribute(), XattrFlags::empty())
    }

    fn done(&mut self, result: Result<(), Errno>, name: &CStr, trace: &mut Trace<'_>) {
        match result {
            Ok(()) => self.lent += 1,
            Err(error) => trace.problem("lend", name, error),
        }
    }
}

/// Takes entries of private ids from the lists of a directory that is open, and those of its owner that came
/// with them.
pub(super) fn take_from_directory(
    directory: BorrowedFd<'_>,
    owner: u32,
    private: &Range<u32>,
) -> Result<Unlent, Errno> {
    let read = |name| read_list(|buffer| fgetxattr(directory, name, buffer));
    let mut unlent = Unlent::Unchanged;
    if let Some(access) = read(ACCESS)?.and_then(|access| revoked(access, owner, private)) {
        fsetxattr(directory, ACCESS, &access.to_attribute(), XattrFlags::empty())?;
        unlent = Unlent::Changed;
    }
    if let Some(default) = read(DEFAULT)?.and_then(|default| revoked(default, owner, private)) {
        if default.names_anybody() {
            fsetxattr(directory, DEFAULT, &default.to_attribute(), XattrFlags::empty())?;
        } else {
            fremovexattr(directory, DEFAULT)?;
        }
        unlent = Unlent::Changed;
    }
    Ok(unlent)
}

/// Takes such entries from the list of a file that this link in `/proc` is for.
pub(super) fn take_from_file(
    link: &str,
    owner: u32,
    private: &Range<u32>,
) -> Result<Unlent, Errno> {
    let access = read_list(|buffer| getxattr(link, ACCESS, buffer))?;
    let Some(access) = access.and_then(|access| revoked(access, owner, private)) else {
        return Ok(Unlent::Unchanged);
    };
    // One without names becomes the mode that it says.
    setxattr(link, ACCESS, &access.to_attribute(), XattrFlags::empty())?;
    Ok(Unlent::Changed)
}

/// Returns a list without the entries of private ids; none if it has none, or if somebody is named whom the
/// user namespace does not know: such a list cannot be written there, and an administrator made it.
fn revoked(mut acl: Acl, owner: u32, private: &Range<u32>) -> Option<Acl> {
    if acl.names_unknown() {
        return None;
    }
    let is_private = |id: u32| private.contains(&id);
    // The owner is named by what was lent alone.
    let is_lent = acl.names_user(is_private);
    acl.revoke(|id| is_private(id) || is_lent && id == owner, is_private).then_some(acl)
}

/// Reads a list; none if there is none, or none that is understood.
fn read_list(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Option<Acl>, Errno> {
    let mut buffer = [0; MAX_LIST_BYTES];
    match read(&mut buffer) {
        Ok(length) => Ok(Acl::parse(buffer.get(..length).unwrap_or_default())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rustix::process::geteuid;

    use super::super::give_back::{GiveBack, give_back};
    use super::*;

    /// The runner's user.
    const OWNER: u32 = 12_345;
    /// The user of a container, and one of another.
    const USER: u32 = 0x6000_0000;
    const OTHER: u32 = USER + 1;

    fn to(uid: u32) -> Lend {
        Lend { uid, owner: OWNER, private: USER..USER + 65_536 }
    }

    /// Makes a directory of the owner in memory. None for those who are not root: only root makes files that
    /// are others'.
    fn directory() -> Option<tempfile::TempDir> {
        if !geteuid().is_root() {
            return None;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(dir.path(), Some(OWNER), Some(OWNER)).unwrap();
        Some(dir)
    }

    /// Runs a script as a user in a directory, and returns whether it succeeds.
    fn can(dir: &Path, uid: u32, script: &str) -> bool {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-euc", script]).current_dir(dir).uid(uid).gid(uid);
        shell.output().unwrap().status.success()
    }

    fn lent(dir: &Path, uid: u32) -> u64 {
        let report = lend(File::open(dir).unwrap().as_fd(), dir, &to(uid)).unwrap();
        assert_eq!(report.problems.count, 0, "{:?}", report.problems);
        report.lent
    }

    fn given_back(dir: &Path) -> u64 {
        let ids = GiveBack { owner: (OWNER, OWNER), private: to(USER).private, has_lists: true };
        let report = give_back(File::open(dir).unwrap().as_fd(), dir, &ids).unwrap();
        assert_eq!(report.problems.count, 0, "{:?}", report.problems);
        report.changed
    }

    /// Returns mode and owner of all that is in a directory, and which lists it has.
    fn shown(dir: &Path) -> Vec<(String, u32, u32, u32, bool)> {
        let mut shown = Vec::new();
        for entry in walkdir::WalkDir::new(dir).sort_by_file_name() {
            let entry = entry.unwrap();
            let found = entry.metadata().unwrap();
            let has = |name| {
                !entry.path_is_symlink() && getxattr(entry.path(), name, &mut [0; 4096][..]).is_ok()
            };
            let name = entry.path().strip_prefix(dir).unwrap().to_string_lossy().into_owned();
            shown.push((name, found.mode(), found.uid(), found.gid(), has(ACCESS) || has(DEFAULT)));
        }
        shown
    }

    #[test]
    fn both_can_use_what_either_makes_and_nothing_of_it_is_left() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        let make = "mkdir -p src/lib; echo a > src/file; chmod 600 src/file; echo '#!/bin/sh' > run; \
                chmod 755 run; echo a > object; chmod 444 object; ln -s /etc/passwd link; mkfifo fifo";
        assert!(can(dir, OWNER, make));
        let before = shown(dir);
        assert!(!can(dir, USER, "echo b > src/new"));
        // Directories, files; neither link nor FIFO.
        assert_eq!(lent(dir, USER), 6);
        assert!(can(
            dir,
            USER,
            "echo b >> src/file; test -x run; echo b > src/new; mkdir -p made/by/me"
        ));
        assert!(!can(dir, USER, "echo b >> object"));
        assert!(!can(dir, OTHER, "echo b > src/other"));
        assert!(can(
            dir,
            OWNER,
            "echo c >> src/new; echo c > made/by/file; umask 077; echo c > late"
        ));
        assert!(can(dir, USER, "echo d >> made/by/file; rm -r made; rm src/new; echo d > late"));
        assert!(can(dir, OWNER, "rm late"));
        assert!(given_back(dir) > 0);
        assert_eq!(shown(dir), before);
        assert_eq!(given_back(dir), 0);
    }

    #[test]
    fn what_a_job_leaves_is_the_runners_alone() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        lent(dir, USER);
        lent(dir, OTHER);
        let make = "umask 022; mkdir -p a/b; echo a > a/file; mkdir -m 700 closed; echo a > closed/file; \
                cp /bin/true setuid; chmod 6755 setuid; mkfifo fifo";
        assert!(can(dir, USER, make));
        assert!(can(dir, OTHER, "echo b > a/b/other; echo b >> a/file; ! ls closed"));
        // The one who may say whom it belongs to says so of all.
        chown(dir.join("a/b/other"), Some(USER + 33), Some(USER + 33)).unwrap();
        given_back(dir);
        for (name, mode, uid, gid, has_list) in shown(dir) {
            assert_eq!((uid, gid, has_list), (OWNER, OWNER, false), "{name}");
            assert_eq!(mode & 0o6022, 0, "{name} is {mode:o}");
        }
        assert!(!can(dir, USER, "echo b > a/file"));
        assert!(can(dir, OWNER, "rm -r a closed setuid"));
    }

    #[test]
    fn files_of_others_and_what_links_lead_to_are_not_lent() {
        let (Some(dir), Some(outside)) = (directory(), directory()) else { return };
        let (dir, outside) = (dir.path(), outside.path());
        fs::write(outside.join("file"), "").unwrap();
        chown(outside.join("file"), Some(OWNER), None).unwrap();
        fs::write(dir.join("root"), "").unwrap();
        symlink(outside, dir.join("directory")).unwrap();
        symlink(outside.join("file"), dir.join("file")).unwrap();
        let before = shown(outside);
        assert_eq!(lent(dir, USER), 1);
        assert_eq!(shown(outside), before);
        assert!(getxattr(dir.join("root"), ACCESS, &mut [0; 64][..]).is_err());
    }

    #[test]
    fn lists_of_administrators_stay() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        assert!(can(dir, OWNER, "mkdir shared; echo a > shared/file"));
        let mut list = Acl::of_mode(0o755);
        list.grant(54_321, 5);
        for name in [ACCESS, DEFAULT] {
            setxattr(dir.join("shared"), name, &list.to_attribute(), XattrFlags::empty()).unwrap();
        }
        lent(dir, USER);
        assert!(can(dir, USER, "echo a > shared/new; echo a >> shared/file"));
        given_back(dir);
        for name in [ACCESS, DEFAULT] {
            let mut buffer = [0; 256];
            let length = getxattr(dir.join("shared"), name, &mut buffer[..]).unwrap();
            assert_eq!(Acl::parse(&buffer[..length]), Some(list.clone()), "{name:?}");
        }
    }

    #[test]
    fn a_file_that_was_made_with_a_smaller_mode_is_lent_too() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        chown(dir, Some(geteuid().as_raw()), None).unwrap();
        let to = Lend { owner: geteuid().as_raw(), ..to(USER) };
        lend(File::open(dir).unwrap().as_fd(), dir, &to).unwrap();
        for (name, owner) in [("own", 0), ("other", OWNER)] {
            File::create(dir.join(name)).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
            chown(dir.join(name), Some(owner), None).unwrap();
            assert!(!can(dir, USER, &format!("echo a > {name}")));
            lend_made(File::open(dir.join(name)).unwrap().as_fd()).unwrap();
        }
        assert!(can(dir, USER, "echo a > own"));
        assert!(!can(dir, USER, "echo a > other"));
        assert!(!can(dir, OTHER, "echo a > own"));
        // Nobody is named in its list, and its group gets nothing.
        let plain = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        fs::set_permissions(plain.path(), fs::Permissions::from_mode(0o644)).unwrap();
        lend_made(plain.as_file().as_fd()).unwrap();
        assert_eq!(plain.path().metadata().unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_file_system_without_lists_is_named() {
        if !geteuid().is_root() {
            return;
        }
        let path = Path::new("/proc/self");
        let error = lend(File::open(path).unwrap().as_fd(), path, &to(USER)).unwrap_err();
        let text = crate::sys::error::chain(&error);
        assert!(text.contains("/proc/self") && text.contains("access control lists"), "{text}");
    }
}
