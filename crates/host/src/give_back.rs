//! Restoring the ownership of a directory after containers have worked in it.
//!
//! Containers leave files of private ids, set-user-ID programs and device nodes. The user may change the
//! directory meanwhile, but gains nothing by it: only files of the user or of private ids are changed, by the
//! descriptor through which their owner was checked.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use oci_hooks_files::beneath::open_strictly;
use oci_hooks_files::fs::PathError;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Statx, Uid, chmodat, chownat, fstat, lgetxattr_query,
    removexattr, statat, unlinkat,
};
use rustix::io::Errno;

use super::caller::FileUser;
use super::lend::{self, AclChange};
pub use super::walk::WalkProblems;
use super::walk::{ClosedAction, NextStep, PATH_ONLY, TreeVisitor, WalkTrace, walk};

/// The owner to restore, and the ids of containers, whose files the owner gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// User and group id of the new owner.
    pub owner: (u32, u32),
    /// User and group ids that no user of the host has, neither root nor the owner: their files were
    /// created in containers.
    pub private: Range<u32>,
    /// Set if access control lists may have entries of private ids, added by [`lend`].
    pub has_lists: bool,
}

/// Default of `kernel.overflowuid`: the id shown for ids that the user namespace does not map.
const OVERFLOW_ID: u32 = 65_534;

/// The changes made to a directory, and the errors.
#[derive(Debug, Default)]
pub struct GiveBackReport {
    /// Number of files and directories whose owner or permissions were changed.
    pub changed: u64,
    /// Number of removed device nodes; each hard link counts.
    pub removed_devices: u64,
    pub problems: WalkProblems,
}

/// Restores the user's ownership of a directory and its content; the name is for messages.
///
/// - Files of a private user id get the user's ids; files of the user with a private group id get the
///   user's group.
/// - All files of the user then lose set-user-ID and set-group-ID bits, file capabilities, and entries of
///   private ids in access control lists.
/// - Devices of the user or of a private id are removed, except the character device 0:0, a whiteout of
///   overlays.
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
    ids: &GiveBack,
) -> Result<GiveBackReport, PathError> {
    let mut giver =
        OwnerRestorer { ids, disarmed: HashSet::new(), report: GiveBackReport::default() };
    let problems = walk(directory, name, &mut giver)?;
    Ok(GiveBackReport { problems, ..giver.report })
}

impl GiveBack {
    /// Returns the new owner of a file with these ids, if it changes.
    fn new_owner(&self, (uid, gid): (u32, u32)) -> Option<(u32, u32)> {
        if self.private.contains(&uid) {
            return Some(self.owner);
        }
        // The overflow id may be any of the user's groups that are not mapped.
        let is_theirs = uid == self.owner.0 && gid != OVERFLOW_ID;
        (is_theirs && self.private.contains(&gid)).then_some((uid, self.owner.1))
    }

    /// Returns whether a user id is the user's or private.
    fn can_change(&self, uid: u32) -> bool {
        uid == self.owner.0 || self.private.contains(&uid)
    }
}

struct OwnerRestorer<'a> {
    ids: &'a GiveBack,
    /// Devices without permissions that still have other names, by device and inode.
    disarmed: HashSet<(u64, u64)>,
    report: GiveBackReport,
}

impl TreeVisitor for OwnerRestorer<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        found: &Statx,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) {
        // The mode is kept.
        let owner = self.ids.new_owner((found.stx_uid, found.stx_gid));
        let given =
            owner.map_or(Ok(false), |owner| self.change_owner(directory, found.stx_uid, owner));
        let is_foreign = is_foreign(found.stx_uid, given);
        self.record_owner_change(given, found.stx_uid, name, trace);
        if self.ids.has_lists && self.ids.can_change(found.stx_uid) && !is_foreign {
            let unlent =
                lend::take_from_directory(directory.as_fd(), self.ids.owner.0, &self.ids.private);
            self.record_acl_change(unlent, owner.is_none(), name, trace);
        }
    }

    fn entry(&mut self, here: BorrowedFd<'_>, name: &CStr, trace: &mut WalkTrace<'_>) -> NextStep {
        // Most files need no change, which can be seen without opening them.
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => return NextStep::Enter,
            Ok(found) if !self.needs_change(here, name, &found) => return NextStep::Nothing,
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => trace.problem("inspect", name, error),
        }
        let file = match open_strictly(here, name, PATH_ONLY, Mode::empty()) {
            Ok(file) => file,
            // The file is gone, or is a mount point.
            Err(Errno::NOENT | Errno::XDEV) => return NextStep::Nothing,
            Err(error) => {
                trace.problem("open", name, error);
                return NextStep::Nothing;
            }
        };
        match fstat(&file) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => return NextStep::Enter,
            Ok(found) if self.is_device(&found) => {
                self.remove_device(here, name, &file, &found, trace);
            }
            Ok(found) if self.ids.can_change(found.st_uid) => {
                let changed = self.restore_file(&file, &found);
                self.record_owner_change(changed, found.st_uid, name, trace);
            }
            Ok(_) => {}
            Err(error) => trace.problem("inspect", name, error),
        }
        NextStep::Nothing
    }

    fn visit_closed(&mut self, here: BorrowedFd<'_>, name: &CStr) -> ClosedAction {
        let opened = open_strictly(here, name, PATH_ONLY, Mode::empty());
        let found = opened.and_then(|file| fstat(&file).map(|found| (file, found)));
        let Ok((file, found)) = found else { return ClosedAction::Report };
        match self.ids.new_owner((found.st_uid, found.st_gid)) {
            Some(owner) => match self.change_owner(&file, found.st_uid, owner) {
                Ok(_) => {
                    self.report.changed += 1;
                    ClosedAction::Retry
                }
                given if is_foreign(found.st_uid, given) => ClosedAction::Leave,
                Err(_) => ClosedAction::Report,
            },
            None if self.ids.can_change(found.st_uid) => ClosedAction::Report,
            None => ClosedAction::Leave,
        }
    }
}

impl OwnerRestorer<'_> {
    fn needs_change(&self, here: BorrowedFd<'_>, name: &CStr, found: &Stat) -> bool {
        if self.is_device(found) {
            return true;
        }
        let has_changed = || {
            self.ids.new_owner((found.st_uid, found.st_gid)).is_some()
                || is_file(found)
                    && (found.st_mode & SET_IDS != 0 || may_have_attribute(here, name, CAPABILITY))
                || self.may_have_acl(found) && may_have_attribute(here, name, lend::ACCESS)
        };
        self.ids.can_change(found.st_uid) && has_changed()
    }

    /// Changes the owner, and removes set-user-ID and set-group-ID bits, capabilities and private ACL entries.
    /// Returns whether the file was changed.
    fn restore_file(&self, file: &OwnedFd, found: &Stat) -> Result<bool, Errno> {
        let owner = self.ids.new_owner((found.st_uid, found.st_gid));
        let mut has_changed = owner.is_some();
        if let Some(owner) = owner {
            self.change_owner(file, found.st_uid, owner)?;
        }
        // These calls do not accept `O_PATH` descriptors, but the path of one in /proc.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        if self.may_have_acl(found) {
            has_changed |= lend::take_from_file(&link, self.ids.owner.0, &self.ids.private)?
                == AclChange::Changed;
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

    /// Returns whether a file may have inherited an ACL: symbolic links have none.
    fn may_have_acl(&self, found: &Stat) -> bool {
        self.ids.has_lists && !FileType::from_raw_mode(found.st_mode).is_symlink()
    }

    /// Changes the owner of a file. Its group may be unmapped in the user namespace, as after creating it in a
    /// set-group-ID directory of such a group.
    fn change_owner(&self, file: &OwnedFd, uid: u32, owner: (u32, u32)) -> Result<bool, Errno> {
        let given = set_owner(file, owner);
        if given != Err(Errno::PERM) || !self.ids.has_lists {
            return given;
        }
        // The kernel does not let root of the namespace change such a file, but its owner may change the group.
        let user = FileUser { uid, gid: owner.1 };
        let group = Some(Gid::from_raw(owner.1));
        let taken = user.run_as_user(|| chownat(file, c"", None, group, AtFlags::EMPTY_PATH));
        if !matches!(taken, Ok(Ok(()))) {
            return given;
        }
        set_owner(file, owner)
    }

    fn is_device(&self, found: &Stat) -> bool {
        let is_device = match FileType::from_raw_mode(found.st_mode) {
            FileType::BlockDevice => true,
            FileType::CharacterDevice => found.st_rdev != 0,
            _ => false,
        };
        let file = (found.st_dev, found.st_ino);
        is_device && (self.ids.can_change(found.st_uid) || self.disarmed.contains(&file))
    }

    fn remove_device(
        &mut self,
        here: BorrowedFd<'_>,
        name: &CStr,
        file: &OwnedFd,
        found: &Stat,
        trace: &mut WalkTrace<'_>,
    ) {
        let id = (found.st_dev, found.st_ino);
        // A hard link that is created meanwhile is useless without permissions.
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

    fn record_acl_change(
        &mut self,
        result: Result<AclChange, Errno>,
        counts: bool,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) {
        match result {
            Ok(unlent) => {
                self.report.changed += u64::from(counts && unlent == AclChange::Changed);
            }
            Err(error) => trace.problem("restore the permissions of", name, error),
        }
    }

    fn record_owner_change(
        &mut self,
        result: Result<bool, Errno>,
        uid: u32,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) {
        match result {
            Ok(has_changed) => self.report.changed += u64::from(has_changed),
            Err(_) if is_foreign(uid, result) => {}
            Err(error) => trace.problem("give back", name, error),
        }
    }
}

/// Returns whether a file belongs to a user of the host whose id the user namespace does not map: the kernel
/// lets no process in the namespace change it.
fn is_foreign(uid: u32, given: Result<bool, Errno>) -> bool {
    uid == OVERFLOW_ID && matches!(given, Err(Errno::PERM | Errno::INVAL | Errno::OVERFLOW))
}

const SET_IDS: u32 = 0o6000;

const CAPABILITY: &CStr = c"security.capability";

fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

fn set_owner(file: &OwnedFd, (uid, gid): (u32, u32)) -> Result<bool, Errno> {
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    chownat(file, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
    Ok(true)
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

/// Returns the size of an extended attribute on older kernels, by a path in `/proc/self/fd`.
fn attribute_bytes_by_link(
    here: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
) -> Result<usize, Errno> {
    // A file name has at most 255 bytes.
    let mut path = [0_u8; 300];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/fd/{}/", here.as_raw_fd())
        .and_then(|()| rest.write_all(name.to_bytes_with_nul()))
        .map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    lgetxattr_query(path, attribute)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use oci_hooks_files::descent::DIRECTORY;
    use oci_hooks_testsupport::descriptors::with_few_descriptors;
    use rustix::fs::{
        RenameFlags, XattrFlags, fchown, makedev, mkdirat, mknodat, openat, renameat_with, setxattr,
    };
    use rustix::process::geteuid;

    use super::super::mount;
    use super::super::removal::remove_tree;
    use super::*;

    const USER: (u32, u32) = (12_345, 12_346);
    const PRIVATE: u32 = 0x6000_0000;
    /// Another user of the host.
    const OTHER: u32 = 54_321;

    fn ids() -> GiveBack {
        GiveBack { owner: USER, private: PRIVATE..PRIVATE + 65_536, has_lists: true }
    }

    /// Creates a temporary directory on tmpfs. Returns `None` without root: only root gives files away.
    fn directory() -> Option<tempfile::TempDir> {
        geteuid().is_root().then(|| tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn run(path: &Path) -> GiveBackReport {
        let report = restore_ownership(File::open(path).unwrap().as_fd(), path, &ids()).unwrap();
        assert_eq!(report.problems.count, 0, "{:?}", report.problems);
        report
    }

    fn make(path: &Path, mode: u32, (uid, gid): (u32, u32)) {
        fs::write(path, "").unwrap();
        lchown(path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn node(path: &Path, kind: FileType, device: u64, uid: u32) {
        mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), device).unwrap();
        lchown(path, Some(uid), Some(uid)).unwrap();
    }

    fn owner(path: &Path) -> (u32, u32) {
        let found = path.symlink_metadata().unwrap();
        (found.uid(), found.gid())
    }

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn private_ids_are_replaced_and_other_owners_kept() {
        let Some(dir) = directory() else { return };
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        for name in ["a", "a/b"] {
            lchown(at(name), Some(PRIVATE), Some(PRIVATE + 1)).unwrap();
        }
        fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o2000)).unwrap();
        make(&at("a/b/private"), 0o600, (PRIVATE + 65_535, PRIVATE));
        fs::hard_link(at("a/b/private"), at("second")).unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        lchown(at("link"), Some(PRIVATE), Some(0)).unwrap();
        make(&at("group"), 0o640, (USER.0, PRIVATE + 5));
        for (name, ids) in [
            ("root", (0, 0)),
            ("root-group", (0, PRIVATE)),
            ("other", (OTHER, OTHER)),
            ("past", (PRIVATE + 65_536, PRIVATE)),
            ("user", USER),
            ("user-other", (USER.0, OTHER)),
        ] {
            make(&at(name), 0o644, ids);
        }
        let report = run(dir.path());
        assert_eq!((report.changed, report.removed_devices), (5, 0));
        for name in ["a", "a/b", "a/b/private", "second", "link", "group", "user"] {
            assert_eq!(owner(&at(name)), USER, "{name}");
        }
        assert_eq!(mode(&at("a/b")), 0o2000);
        assert_eq!(owner(&at("root")), (0, 0));
        assert_eq!(owner(&at("root-group")), (0, PRIVATE));
        assert_eq!(owner(&at("other")), (OTHER, OTHER));
        assert_eq!(owner(&at("past")), (PRIVATE + 65_536, PRIVATE));
        assert_eq!(owner(&at("user-other")), (USER.0, OTHER));
        assert_eq!(run(dir.path()).changed, 0);
    }

    #[test]
    fn ownership_of_the_directory_itself_is_restored() {
        let Some(dir) = directory() else { return };
        lchown(dir.path(), Some(PRIVATE), Some(PRIVATE)).unwrap();
        assert_eq!(run(dir.path()).changed, 1);
        assert_eq!(owner(dir.path()), USER);
        lchown(dir.path(), Some(OTHER), Some(OTHER)).unwrap();
        assert_eq!(run(dir.path()).changed, 0);
        assert_eq!(owner(dir.path()), (OTHER, OTHER));
    }

    #[test]
    fn permissions_of_others_are_removed_from_user_files() {
        let Some(dir) = directory() else { return };
        let at = |name: &str| dir.path().join(name);
        make(&at("disk"), 0o2755, (USER.0, OTHER));
        make(&at("private"), 0o6711, (PRIVATE, PRIVATE));
        make(&at("no-run"), 0o2640, (PRIVATE, PRIVATE));
        make(&at("root"), 0o4755, (0, 0));
        // Version 2 of file capabilities: cap_setuid, permitted and effective.
        let mut value = [0; 20];
        (value[0], value[3], value[4]) = (1, 2, 1 << 7);
        for (name, uid) in [("able", USER.0), ("able-private", PRIVATE), ("able-root", 0)] {
            make(&at(name), 0o755, (uid, uid));
            setxattr(at(name), CAPABILITY, &value, XattrFlags::empty()).unwrap();
        }
        assert_eq!(run(dir.path()).changed, 5);
        assert_eq!(
            ["disk", "private", "no-run"].map(|name| mode(&at(name))),
            [0o755, 0o711, 0o640]
        );
        assert_eq!(mode(&at("root")), 0o4755);
        let has =
            |name| may_have_attribute(File::open(dir.path()).unwrap().as_fd(), name, CAPABILITY);
        assert_eq!([c"able", c"able-private", c"able-root"].map(has), [false, false, true]);
        let top = File::open(dir.path()).unwrap();
        let by_link = |name| attribute_bytes_by_link(top.as_fd(), name, CAPABILITY);
        assert_eq!([c"able", c"able-root"].map(by_link), [Err(Errno::NODATA), Ok(20)]);
    }

    #[test]
    fn devices_of_the_user_are_removed_under_all_names() {
        let Some(dir) = directory() else { return };
        let at = |name: &str| dir.path().join(name);
        let null = makedev(1, 3);
        node(&at("block"), FileType::BlockDevice, makedev(7, 0), USER.0);
        node(&at("private"), FileType::CharacterDevice, null, PRIVATE);
        fs::create_dir(at("a")).unwrap();
        fs::hard_link(at("private"), at("a/second")).unwrap();
        fs::hard_link(at("private"), at("third")).unwrap();
        node(&at("root"), FileType::CharacterDevice, null, 0);
        node(&at("whiteout"), FileType::CharacterDevice, 0, PRIVATE);
        node(&at("fifo"), FileType::Fifo, 0, PRIVATE);
        let report = run(dir.path());
        assert_eq!((report.changed, report.removed_devices), (2, 4));
        for name in ["block", "private", "a/second", "third"] {
            assert!(!at(name).exists(), "{name}");
        }
        assert_eq!(["whiteout", "fifo"].map(|name| owner(&at(name))), [USER; 2]);
        assert_eq!((owner(&at("root")), mode(&at("root"))), ((0, 0), 0o666 & !umask()));
    }

    fn umask() -> u32 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
        u32::from_str_radix(line.trim(), 8).unwrap()
    }

    #[test]
    fn mounts_in_the_directory_are_kept() {
        let Some(dir) = directory() else { return };
        let inside = dir.path().join("mounted");
        fs::create_dir(&inside).unwrap();
        mount::mount_tmpfs(&inside, 0o700, Some(1 << 20)).unwrap();
        make(&inside.join("private"), 0o4755, (PRIVATE, PRIVATE));
        let report = run(dir.path());
        let (owner, mode) = (owner(&inside.join("private")), mode(&inside.join("private")));
        mount::unmount(&inside).unwrap();
        assert_eq!((report.changed, owner, mode), (0, (PRIVATE, PRIVATE), 0o4755));
    }

    #[test]
    fn correct_files_are_only_inspected() {
        let Some(dir) = directory() else { return };
        for parent in 0..50 {
            let parent = dir.path().join(parent.to_string());
            fs::create_dir(&parent).unwrap();
            for name in 0..1000 {
                make(&parent.join(name.to_string()), 0o644, USER);
            }
        }
        let start = Instant::now();
        assert_eq!(run(dir.path()).changed, 0);
        println!("50 000 entries with nothing to change took {:?}", start.elapsed());
    }

    #[test]
    fn two_thousand_levels_need_few_descriptors_and_little_stack() {
        const LEVELS: usize = 2000;
        let test = "give_back::tests::two_thousand_levels_need_few_descriptors_and_little_stack";
        with_few_descriptors(test, || {
            let Some(dir) = directory() else { return };
            let name = "n".repeat(255);
            let mut here = OwnedFd::from(File::open(dir.path()).unwrap());
            for _ in 0..LEVELS {
                mkdirat(&here, &*name, Mode::RWXU).unwrap();
                here = openat(&here, &*name, DIRECTORY, Mode::empty()).unwrap();
                fchown(&here, Some(Uid::from_raw(PRIVATE)), None).unwrap();
            }
            let start = Instant::now();
            assert_eq!(run(dir.path()).changed, LEVELS as u64);
            println!("{LEVELS} levels took {:?}", start.elapsed());
            let found = fstat(&here).unwrap();
            assert_eq!((found.st_uid, found.st_gid), USER);
            // An open directory would keep all its parents in the kernel's cache, which is walked at each removal.
            drop(here);
            let start = Instant::now();
            remove_tree(dir.path()).unwrap();
            println!("removing them took {:?}", start.elapsed());
            assert!(!dir.path().exists());
        });
    }

    #[test]
    fn concurrently_swapped_files_grant_nothing() {
        const TRIES: usize = 10_000;
        let Some(dir) = directory() else { return };
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("top/dir")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        make(&at("top/dir/file"), 0o644, (PRIVATE, PRIVATE));
        make(&at("top/hard"), 0o644, (PRIVATE, PRIVATE));
        make(&at("outside/file"), 0o4600, (0, 0));
        // A file of another user's container, reachable only through a link.
        make(&at("outside/foreign"), 0o644, (PRIVATE, PRIVATE));
        node(&at("outside/device"), FileType::CharacterDevice, makedev(1, 3), 0);
        make(&at("top/dir/foreign"), 0o644, (PRIVATE, PRIVATE));
        symlink(at("outside"), at("top/link")).unwrap();
        fs::hard_link(at("outside/file"), at("top/hard-root")).unwrap();
        fs::hard_link(at("outside/device"), at("top/device-root")).unwrap();
        node(&at("top/device"), FileType::CharacterDevice, makedev(1, 3), USER.0);
        let top = File::open(at("top")).unwrap();
        let given: Vec<File> = ["top/dir/file", "top/hard", "top/dir/foreign"]
            .map(|name| File::open(at(name)).unwrap())
            .into();
        let again = || {
            for file in &given {
                fchown(file, Some(Uid::from_raw(PRIVATE)), None).unwrap();
            }
        };
        let outside = || {
            let seen = |name| (owner(&at(name)), mode(&at(name)));
            ["outside/file", "outside/foreign", "outside/device"].map(seen)
        };
        let before = outside();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let end = Instant::now() + Duration::from_secs(120);
                while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                    for (one, two) in [("dir", "link"), ("hard", "hard-root")] {
                        let _ = renameat_with(&top, one, &top, two, RenameFlags::EXCHANGE);
                    }
                    let _ =
                        renameat_with(&top, "device", &top, "device-root", RenameFlags::EXCHANGE);
                }
            });
            // Prove first that the attacker wins at once against changes by path.
            let deadline = Instant::now() + Duration::from_secs(60);
            while outside() == before && Instant::now() < deadline {
                again();
                let found = statat(&top, "dir/file", AtFlags::empty());
                if found.is_ok_and(|found| found.st_uid == PRIVATE) {
                    let _ = chownat(
                        &top,
                        "dir/file",
                        Some(Uid::from_raw(USER.0)),
                        None,
                        AtFlags::empty(),
                    );
                }
            }
            let is_beaten = outside() != before;
            lchown(at("outside/file"), Some(0), Some(0)).unwrap();
            fs::set_permissions(at("outside/file"), fs::Permissions::from_mode(0o4600)).unwrap();
            let mut changed = 0;
            for _ in 0..TRIES {
                again();
                let report = restore_ownership(top.as_fd(), Path::new("/top"), &ids());
                changed += report.as_ref().map_or(0, |report| report.changed);
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(is_beaten, "the swapper is too slow to prove anything");
            println!("{changed} changes in {TRIES} tries, none outside");
        });
        assert_eq!(outside(), before);
    }

    /// Lending and giving back as root of a user namespace, where most users of the host are unmapped.
    mod in_user_namespace {
        use std::fs::{self, File};
        use std::io::Write as _;
        use std::os::fd::AsFd as _;
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
        use std::path::Path;
        use std::process::Command;
        use std::time::Instant;

        use rustix::process::geteuid;

        use super::super::super::lend::{DirectoryLoan, lend_tree};
        use super::super::super::userns::{IdRange, NamespaceMapping};
        use super::super::*;

        /// The runner's user, and the first of its subordinate ids.
        const RUNNER: u32 = 12_345;
        const FIRST: u32 = 0x6000_0000;
        const COUNT: u32 = 65_536;
        /// Users and groups of the host that the namespace does not map.
        const HOST: u32 = 54_321;

        /// Environment variable with the test's directory, for the process in the namespace.
        const MARK: &str = "OCI_HOOKS_TEST_IN_USER_NAMESPACE";

        fn ids() -> GiveBack {
            GiveBack { owner: (0, 0), private: 1..COUNT + 1, has_lists: true }
        }

        /// Prepares a directory on tmpfs as root, calls the body in a new process as root of a user namespace of the
        /// runner, and then calls `check`. Only root can map so many ids.
        fn run_test(test: &str, prepare: fn(&Path), body: fn(&Path), check: fn(&Path)) {
            if let Some(dir) = std::env::var_os(MARK) {
                return body(Path::new(&dir));
            }
            if !geteuid().is_root() {
                return;
            }
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            set_test_owner(dir.path(), RUNNER, RUNNER);
            prepare(dir.path());
            let ranges = || {
                let range = |disk, view, count| IdRange { disk, view, count };
                vec![range(0, RUNNER, 1), range(1, FIRST, COUNT)]
            };
            let namespace =
                NamespaceMapping { uids: ranges(), gids: ranges() }.namespace().unwrap();
            let link = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
            let mut enter = Command::new("nsenter");
            enter.arg(format!("--user={link}")).args(["--setuid", "0", "--setgid", "0", "--"]);
            enter.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
            let output = enter.env(MARK, dir.path()).output().unwrap();
            let _ = std::io::stdout().write_all(&output.stdout);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(
                String::from_utf8_lossy(&output.stdout).contains("1 passed"),
                "{test} was not run"
            );
            check(dir.path());
        }

        fn set_test_owner(path: &Path, uid: u32, gid: u32) {
            lchown(path, Some(uid), Some(gid)).unwrap();
        }

        fn owner(path: &Path) -> (u32, u32) {
            let found = path.symlink_metadata().unwrap();
            (found.uid(), found.gid())
        }

        /// Creates a file or, if the name ends with a slash, a directory.
        fn make(dir: &Path, name: &str, mode: u32, (uid, gid): (u32, u32)) {
            let path = dir.join(name);
            match name.ends_with('/') {
                true => fs::create_dir(&path).unwrap(),
                false => drop(File::create(&path).unwrap()),
            }
            set_test_owner(&path, uid, gid);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn run(dir: &Path) -> GiveBackReport {
            let report = restore_ownership(File::open(dir).unwrap().as_fd(), dir, &ids()).unwrap();
            assert_eq!(report.problems.count, 0, "{:?}", report.problems);
            report
        }

        #[test]
        fn subordinate_ids_are_replaced_and_other_owners_kept() {
            run_test(
                "give_back::tests::in_user_namespace::\
         subordinate_ids_are_replaced_and_other_owners_kept",
                |dir| {
                    make(dir, "first", 0o600, (FIRST, FIRST));
                    make(dir, "nobody", 0o600, (FIRST + 65_533, FIRST + 65_533));
                    make(dir, "last", 0o600, (FIRST + COUNT - 1, RUNNER));
                    make(dir, "group", 0o640, (RUNNER, FIRST + 5));
                    make(dir, "host-group", 0o640, (RUNNER, HOST));
                    make(dir, "root", 0o600, (0, 0));
                    make(dir, "host", 0o4755, (HOST, HOST));
                    make(dir, "lost+found/", 0o700, (0, 0));
                    make(dir, "host-dir/", 0o700, (HOST, HOST));
                    // A file that a container creates in a set-group-ID directory of a group of the host.
                    make(dir, "set-group/", 0o2775, (RUNNER, HOST));
                    make(dir, "set-group/file", 0o600, (FIRST + 999, HOST));
                    make(dir, "set-group/dir/", 0o2700, (FIRST + 999, HOST));
                    make(dir, "set-group/dir/file", 0o4755, (FIRST + 999, HOST));
                },
                |dir| {
                    assert_eq!(run(dir).changed, 7);
                    assert_eq!(run(dir).changed, 0);
                },
                |dir| {
                    for name in
                        ["first", "nobody", "last", "group", "set-group/file", "set-group/dir/file"]
                    {
                        assert_eq!(owner(&dir.join(name)), (RUNNER, RUNNER), "{name}");
                    }
                    assert_eq!(owner(&dir.join("set-group/dir")), (RUNNER, RUNNER));
                    let mode = |name| dir.join(name).metadata().unwrap().mode() & 0o7777;
                    assert_eq!([mode("set-group/dir/file"), mode("host")], [0o755, 0o4755]);
                    for name in ["host-group", "set-group"] {
                        assert_eq!(owner(&dir.join(name)), (RUNNER, HOST), "{name}");
                    }
                    assert_eq!(
                        ["root", "lost+found"].map(|name| owner(&dir.join(name))),
                        [(0, 0); 2]
                    );
                    let host = ["host", "host-dir"].map(|name| owner(&dir.join(name)));
                    assert_eq!(host, [(HOST, HOST); 2]);
                },
            );
        }

        #[test]
        fn restoring_lent_files_takes_microseconds_per_file() {
            const FILES: u64 = 20_000;
            run_test(
                "give_back::tests::in_user_namespace::\
         restoring_lent_files_takes_microseconds_per_file",
                |dir| {
                    for parent in 0..FILES / 100 {
                        make(dir, &format!("{parent}/"), 0o755, (RUNNER, RUNNER));
                        for name in 1..100 {
                            make(dir, &format!("{parent}/{name}"), 0o644, (RUNNER, RUNNER));
                        }
                    }
                },
                |dir| {
                    let timed = |what: &str, files: u64, work: &dyn Fn() -> u64| {
                        let start = Instant::now();
                        assert_eq!(work(), files, "{what}");
                        println!("{files} files: {what} in {:?}", start.elapsed());
                    };
                    let to = DirectoryLoan { uid: 1000, owner: 0, private: ids().private };
                    timed("lent", FILES + 1, &|| {
                        let report = lend_tree(File::open(dir).unwrap().as_fd(), dir, &to).unwrap();
                        assert_eq!(report.problems.count, 0, "{:?}", report.problems);
                        report.lent
                    });
                    timed("given back, with lists", FILES + 1, &|| run(dir).changed);
                    for entry in walkdir::WalkDir::new(dir).min_depth(1) {
                        set_test_owner(entry.unwrap().path(), 1000, 1000);
                    }
                    timed("given back, with owners", FILES, &|| run(dir).changed);
                    timed("looked at", 0, &|| run(dir).changed);
                },
                |dir| {
                    for entry in walkdir::WalkDir::new(dir) {
                        let found = entry.unwrap().metadata().unwrap();
                        assert_eq!((found.uid(), found.gid()), (RUNNER, RUNNER));
                        assert_eq!(found.mode() & 0o7022, 0);
                    }
                },
            );
        }
    }
}
