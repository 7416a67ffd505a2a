//! Shares a directory with another user of the same user namespace, by access control lists (ACLs):
//! both users can access existing files, and new files of either. Owners do not change;
//! [`ownership`](super::ownership) revokes the access. `container-hook` shares the directories of a
//! rootless runner with containers.
//!
//! ACLs replace idmapped mounts, which only root of the host can create: without either, the
//! runner's files belong to root in a container, and a program there that is not root cannot write
//! to them.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::PathError;
use oci_hooks_files::fs::acl::ALL;
use rustix::fs::{
    AtFlags, FileType, Statx, XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat, getxattr,
    setxattr, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::posix_acl::Acl;
use super::walk::{AccessDeniedAction, EntryAction, TreeVisitor, WalkProblems, WalkTrace, walk};

/// Extended attribute with the access ACL of a file.
pub(super) const ACCESS: &CStr = c"system.posix_acl_access";

/// Extended attribute with the default ACL of a directory.
const DEFAULT: &CStr = c"system.posix_acl_default";

/// Maximum size of an ACL; longer ones were written by hand.
const MAX_LIST_BYTES: usize = 4096;

/// The user to share a directory with, and the directory's owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOptions {
    /// User id to share the directory with.
    pub uid: u32,
    /// User id of the directory's owner.
    pub owner: u32,
    /// Private ids of other containers, whose files are shared too.
    pub private_ids: Range<u32>,
}

/// The number of shared files, and the errors.
#[derive(Debug, Default)]
pub struct ShareReport {
    /// Number of shared files and directories.
    pub shared: u64,
    pub problems: WalkProblems,
}

/// Grants a user the owners' permissions on a directory and its content, and both users full permissions on
/// new files of either. The name is for messages.
///
/// Errors of single files are part of the report; files that are removed meanwhile are no errors.
///
/// # Errors
///
/// Fails if the directory cannot be opened, or if its file system has no access control lists.
pub fn share_tree(
    directory: BorrowedFd<'_>,
    name: &Path,
    with: &ShareOptions,
) -> Result<ShareReport, PathError> {
    let link = descriptor_path(directory);
    if getxattr(&*link, ACCESS, &mut [0; MAX_LIST_BYTES][..]) == Err(Errno::NOTSUP) {
        let text = format!(
            "its file system has no POSIX access control lists: expected one such as ext4, xfs, btrfs \
             or tmpfs, or a container that runs as root (`--user 0`) instead of user {}",
            with.uid
        );
        return Err(PathError::new(
            "grant the container's user access to",
            name,
            io::Error::other(text),
        ));
    }
    let mut sharer = TreeSharer { with, shared: 0 };
    let problems = walk(directory, name, &mut sharer)?;
    Ok(ShareReport { shared: sharer.shared, problems })
}

/// Grants the users named in a new file's inherited ACL the permissions of its owner: the file's mode at creation,
/// which becomes the ACL mask, may have limited them. Files without an ACL, files of other users, and anything but
/// regular files stay as they are.
///
/// # Errors
///
/// Fails if the file's ACL cannot be read or written.
pub fn share_new_file(file: BorrowedFd<'_>) -> io::Result<()> {
    let found = fstat(file)?;
    let is_own = found.st_uid == geteuid().as_raw();
    if !is_own || FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    let link = descriptor_path(file);
    let Some(mut access) = read_list(|buffer| getxattr(&*link, ACCESS, buffer))? else {
        return Ok(());
    };
    if access.grant_users(access.owner()) {
        setxattr(&*link, ACCESS, &access.to_attribute(), XattrFlags::empty())?;
    }
    Ok(())
}

struct TreeSharer<'a> {
    with: &'a ShareOptions,
    shared: u64,
}

impl TreeVisitor for TreeSharer<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        found: &Statx,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) {
        if self.is_shared(found.stx_uid) {
            let shared = self.share_directory(directory, u32::from(found.stx_mode));
            self.record_result(shared, name, trace);
        }
    }

    fn entry(
        &mut self,
        here: BorrowedFd<'_>,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) -> EntryAction {
        let Some((file, found)) = trace.open_entry(here, name) else { return EntryAction::Nothing };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => return EntryAction::Enter,
            FileType::RegularFile if self.is_shared(found.st_uid) => {
                let shared = self.share_file(&file, found.st_mode);
                self.record_result(shared, name, trace);
            }
            _ => {}
        }
        EntryAction::Nothing
    }

    fn handle_access_denied(&mut self, here: BorrowedFd<'_>, name: &CStr) -> AccessDeniedAction {
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if !self.is_shared(found.st_uid) => AccessDeniedAction::Skip,
            _ => AccessDeniedAction::Report,
        }
    }
}

impl TreeSharer<'_> {
    fn is_shared(&self, uid: u32) -> bool {
        uid == self.with.owner || self.with.private_ids.contains(&uid)
    }

    fn share_directory(&self, directory: &OwnedFd, mode: u32) -> Result<(), Errno> {
        let read = |name| read_list(|buffer| fgetxattr(directory, name, buffer));
        let write =
            |name, acl: &Acl| fsetxattr(directory, name, &acl.to_attribute(), XattrFlags::empty());
        let mut access = read(ACCESS)?.unwrap_or_else(|| Acl::of_mode(mode));
        let mut default = match read(DEFAULT)? {
            Some(default) => default,
            None => access.without_names(),
        };
        access.grant(self.with.uid, access.owner());
        // Both users get all permissions on new files, which their modes limit.
        for uid in [self.with.owner, self.with.uid] {
            default.grant(uid, ALL);
        }
        write(ACCESS, &access)?;
        write(DEFAULT, &default)
    }

    fn share_file(&self, file: &OwnedFd, mode: u32) -> Result<(), Errno> {
        // `fgetxattr` does not accept `O_PATH` descriptors, but `getxattr` accepts their path in /proc.
        let link = descriptor_path(file);
        let access = read_list(|buffer| getxattr(&*link, ACCESS, buffer))?;
        let mut access = access.unwrap_or_else(|| Acl::of_mode(mode));
        access.grant(self.with.uid, access.owner());
        setxattr(&*link, ACCESS, &access.to_attribute(), XattrFlags::empty())
    }

    fn record_result(&mut self, result: Result<(), Errno>, name: &CStr, trace: &mut WalkTrace<'_>) {
        match result {
            Ok(()) => self.shared += 1,
            Err(error) => trace.problem("grant the container's user access to", name, error),
        }
    }
}

/// Removes entries of private ids from the ACLs of an open directory, and the entries that sharing added for its
/// owner. Returns whether there were any.
pub(super) fn revoke_from_directory(
    directory: &OwnedFd,
    owner: u32,
    private_ids: &Range<u32>,
) -> Result<bool, Errno> {
    let read = |name| read_list(|buffer| fgetxattr(directory, name, buffer));
    let mut has_changed = false;
    if let Some(access) =
        read(ACCESS)?.and_then(|access| revoke_entries(access, owner, private_ids))
    {
        fsetxattr(directory, ACCESS, &access.to_attribute(), XattrFlags::empty())?;
        has_changed = true;
    }
    if let Some(default) =
        read(DEFAULT)?.and_then(|default| revoke_entries(default, owner, private_ids))
    {
        if default.has_names() {
            fsetxattr(directory, DEFAULT, &default.to_attribute(), XattrFlags::empty())?;
        } else {
            fremovexattr(directory, DEFAULT)?;
        }
        has_changed = true;
    }
    Ok(has_changed)
}

/// Removes entries of private ids from the ACL of a file, and the entry that sharing added for its
/// owner. The file is given by its link in `/proc/self/fd`. Returns whether there were any.
pub(super) fn revoke_from_file(
    link: &str,
    owner: u32,
    private_ids: &Range<u32>,
) -> Result<bool, Errno> {
    let access = read_list(|buffer| getxattr(link, ACCESS, buffer))?;
    let Some(access) = access.and_then(|access| revoke_entries(access, owner, private_ids)) else {
        return Ok(false);
    };
    // The kernel turns an ACL without named entries into a mode.
    setxattr(link, ACCESS, &access.to_attribute(), XattrFlags::empty())?;
    Ok(true)
}

/// Returns an ACL without the entries of private ids. Returns `None` if it has no such entries, or names an id that
/// is not mapped in the user namespace: such an ACL cannot be written there, and an administrator created it.
fn revoke_entries(mut acl: Acl, owner: u32, private_ids: &Range<u32>) -> Option<Acl> {
    if acl.names_unknown() {
        return None;
    }
    let is_private = |id: u32| private_ids.contains(&id);
    // Only sharing adds an entry for the owner.
    let is_shared = acl.names_user(is_private);
    acl.revoke(|id| is_private(id) || is_shared && id == owner, is_private).then_some(acl)
}

/// Reads an ACL; `None` if it is missing or malformed.
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

    use super::super::ownership::{FileOwners, restore_ownership};
    use super::*;

    const OWNER: u32 = 12_345;
    /// The users of two containers.
    const USER: u32 = 0x6000_0000;
    const OTHER: u32 = USER + 1;

    fn with(uid: u32) -> ShareOptions {
        ShareOptions { uid, owner: OWNER, private_ids: USER..USER + 65_536 }
    }

    /// Creates a directory of the owner on tmpfs. Returns `None` without root: only root gives files away.
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

    fn share(dir: &Path, uid: u32) -> u64 {
        let report = share_tree(File::open(dir).unwrap().as_fd(), dir, &with(uid)).unwrap();
        assert_eq!(report.problems.count, 0, "{:?}", report.problems);
        report.shared
    }

    fn restore_files(dir: &Path) -> u64 {
        let owners = FileOwners {
            owner: (OWNER, OWNER),
            private_ids: with(USER).private_ids,
            has_acls: true,
        };
        let report = restore_ownership(File::open(dir).unwrap().as_fd(), dir, &owners).unwrap();
        assert_eq!(report.problems.count, 0, "{:?}", report.problems);
        report.changed
    }

    /// Returns name, mode and owner of all files in a directory, and whether each has ACLs.
    fn list_files(dir: &Path) -> Vec<(String, u32, u32, u32, bool)> {
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
    fn both_users_share_files_and_permissions_are_fully_revoked() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        let make = "mkdir -p src/lib; echo a > src/file; chmod 600 src/file; echo '#!/bin/sh' > run; \
                chmod 755 run; echo a > object; chmod 444 object; ln -s /etc/passwd link; mkfifo fifo";
        assert!(can(dir, OWNER, make));
        let before = list_files(dir);
        assert!(!can(dir, USER, "echo b > src/new"));
        // Directories and regular files; no link or FIFO.
        assert_eq!(share(dir, USER), 6);
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
        assert!(restore_files(dir) > 0);
        assert_eq!(list_files(dir), before);
        assert_eq!(restore_files(dir), 0);
    }

    #[test]
    fn files_of_a_job_end_up_with_the_runner_alone() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        share(dir, USER);
        share(dir, OTHER);
        let make = "umask 022; mkdir -p a/b; echo a > a/file; mkdir -m 700 closed; echo a > closed/file; \
                cp /bin/true setuid; chmod 6755 setuid; mkfifo fifo";
        assert!(can(dir, USER, make));
        assert!(can(dir, OTHER, "echo b > a/b/other; echo b >> a/file; ! ls closed"));
        // A container may leave files of any of its private ids.
        chown(dir.join("a/b/other"), Some(USER + 33), Some(USER + 33)).unwrap();
        restore_files(dir);
        for (name, mode, uid, gid, has_list) in list_files(dir) {
            assert_eq!((uid, gid, has_list), (OWNER, OWNER, false), "{name}");
            assert_eq!(mode & 0o6022, 0, "{name} is {mode:o}");
        }
        assert!(!can(dir, USER, "echo b > a/file"));
        assert!(can(dir, OWNER, "rm -r a closed setuid"));
    }

    #[test]
    fn foreign_files_and_link_targets_are_not_shared() {
        let (Some(dir), Some(outside)) = (directory(), directory()) else { return };
        let (dir, outside) = (dir.path(), outside.path());
        fs::write(outside.join("file"), "").unwrap();
        chown(outside.join("file"), Some(OWNER), None).unwrap();
        fs::write(dir.join("root"), "").unwrap();
        symlink(outside, dir.join("directory")).unwrap();
        symlink(outside.join("file"), dir.join("file")).unwrap();
        let before = list_files(outside);
        assert_eq!(share(dir, USER), 1);
        assert_eq!(list_files(outside), before);
        assert!(getxattr(dir.join("root"), ACCESS, &mut [0; 64][..]).is_err());
    }

    #[test]
    fn acls_of_administrators_are_kept() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        assert!(can(dir, OWNER, "mkdir shared; echo a > shared/file"));
        let mut list = Acl::of_mode(0o755);
        list.grant(54_321, 5);
        for name in [ACCESS, DEFAULT] {
            setxattr(dir.join("shared"), name, &list.to_attribute(), XattrFlags::empty()).unwrap();
        }
        share(dir, USER);
        assert!(can(dir, USER, "echo a > shared/new; echo a >> shared/file"));
        restore_files(dir);
        for name in [ACCESS, DEFAULT] {
            let mut buffer = [0; 256];
            let length = getxattr(dir.join("shared"), name, &mut buffer[..]).unwrap();
            assert_eq!(Acl::parse(&buffer[..length]), Some(list.clone()), "{name:?}");
        }
    }

    #[test]
    fn file_created_with_a_restrictive_mode_is_shared() {
        let Some(dir) = directory() else { return };
        let dir = dir.path();
        chown(dir, Some(geteuid().as_raw()), None).unwrap();
        let with = ShareOptions { owner: geteuid().as_raw(), ..with(USER) };
        share_tree(File::open(dir).unwrap().as_fd(), dir, &with).unwrap();
        for (name, owner) in [("own", 0), ("other", OWNER)] {
            File::create(dir.join(name)).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
            chown(dir.join(name), Some(owner), None).unwrap();
            assert!(!can(dir, USER, &format!("echo a > {name}")));
            share_new_file(File::open(dir.join(name)).unwrap().as_fd()).unwrap();
        }
        assert!(can(dir, USER, "echo a > own"));
        assert!(!can(dir, USER, "echo a > other"));
        assert!(!can(dir, OTHER, "echo a > own"));
        // Without an ACL that names users, the mode stays: the group gets no further permissions.
        let plain = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        fs::set_permissions(plain.path(), fs::Permissions::from_mode(0o644)).unwrap();
        share_new_file(plain.as_file().as_fd()).unwrap();
        assert_eq!(plain.path().metadata().unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn file_system_without_acls_is_named() {
        if !geteuid().is_root() {
            return;
        }
        let path = Path::new("/proc/self");
        let error = share_tree(File::open(path).unwrap().as_fd(), path, &with(USER)).unwrap_err();
        let text = oci_hooks_files::error::chain(&error);
        assert!(text.contains("/proc/self") && text.contains("access control lists"), "{text}");
    }
}
