//! Directories of a user's images and records: file system, permissions, persistence.

use std::io;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, accessat, fstatfs, fstatvfs, open,
};

use super::super::super::paths::{is_temporary, replaced_by};
use super::super::super::sections::StoreSection;
use super::super::HostCheck;
use super::super::storage::existing_ancestor;

/// File systems that cannot hold layers: `f_type` of statfs(2), name and reason.
const UNFIT: [(u32, &str, &str); 9] = [
    (0x6969, "NFS", NETWORK),
    (0xff53_4d42, "SMB", NETWORK),
    (0xfe53_4d42, "SMB", NETWORK),
    (0x517b, "SMB", NETWORK),
    (0x0102_1997, "9p", NETWORK),
    (0x00c3_6400, "Ceph", NETWORK),
    (0x794c_7630, "overlay", "layers cannot be on another overlay"),
    (0xf15f, "eCryptfs", "layers cannot be on it"),
    (0x4d44, "FAT", "it has no owners of files"),
];

const NETWORK: &str =
    "users cannot assign files to their subordinate ids, or set attributes of overlays";

const HINT: &str =
    "set `root` under [store] to a directory of this user on ext4, xfs, btrfs or tmpfs";

/// Checks the file system of the image store.
pub fn file_system(store: &StoreSection) -> Option<HostCheck> {
    let there = existing_ancestor(&store.root);
    let file = open(&there, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = u32::try_from(fstatfs(&file).ok()?.f_type & 0xffff_ffff).ok()?;
    let problem = unsuitable_reason(kind, fstatvfs(&file).ok()?.f_flag)?;
    Some(HostCheck::fail("file system", format!("{} is {problem}", there.display()), HINT))
}

/// Returns the reason why a file system cannot hold layers, given its type and mount flags.
fn unsuitable_reason(kind: u32, flags: StatVfsMountFlags) -> Option<String> {
    if let Some((_, name, why)) = UNFIT.iter().find(|(number, ..)| *number == kind) {
        return Some(format!("on {name}: {why}"));
    }
    flags
        .contains(StatVfsMountFlags::NOEXEC)
        .then(|| "mounted noexec: nothing in images can be executed".to_owned())
}

/// Checks that this user can write to a directory, or create it.
pub fn check_writable(name: &'static str, key: &str, path: &Path) -> Option<HostCheck> {
    let there = existing_ancestor(path);
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let error = accessat(CWD, &there, access, AtFlags::EACCESS).err()?;
    let error = io::Error::from(error);
    let found = format!("{} cannot be written: {error}", there.display());
    let hint = format!("name a directory of this user as `{key}` under [store]");
    Some(HostCheck::fail(name, found, hint))
}

/// Warns if the image store is in `/tmp`, as by default for a user without a home directory.
pub fn temporary(root: &Path) -> Option<HostCheck> {
    let found = format!("{} is lost when /tmp is cleared", root.display());
    let hint = "give the user a home directory, or name a persistent one as `root` under [store]";
    is_temporary(root).then(|| HostCheck::warn("store", found, hint))
}

/// Warns if the run directory replaces the usual one in `/tmp`, which is not private to this user.
pub fn replaced(run: &Path) -> Option<HostCheck> {
    let usual = replaced_by(run)?;
    let found = format!("{}, since {} is not private to this user", run.display(), usual.display());
    let hint = "loginctl enable-linger: then it is in the user's runtime directory";
    Some(HostCheck::warn("run directory", found, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuitable_file_systems_are_recognized() {
        let none = StatVfsMountFlags::empty();
        assert_eq!(unsuitable_reason(0xef53, none), None, "ext4");
        assert_eq!(unsuitable_reason(0x0102_1994, StatVfsMountFlags::NOSUID), None, "tmpfs");
        assert!(unsuitable_reason(0x6969, none).unwrap().starts_with("on NFS: users cannot"));
        assert!(
            unsuitable_reason(0xef53, StatVfsMountFlags::NOEXEC)
                .unwrap()
                .starts_with("mounted noexec")
        );
    }

    #[test]
    fn missing_directory_is_writable_if_it_can_be_created() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_writable("store", "root", &dir.path().join("a/b")).is_none());
        let store = StoreSection { root: dir.path().join("a"), ..StoreSection::default() };
        // If the file system is unfit, the finding has the existing directory.
        if let Some(check) = file_system(&store) {
            let found = serde_json::to_string(&check).unwrap();
            assert!(found.contains(dir.path().to_str().unwrap()), "{found}");
        }
    }
}
