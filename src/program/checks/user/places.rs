//! Where a user's images and records are: on what file system, and whether they stay.

use std::io;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, accessat, fstatfs, fstatvfs, open,
};

use super::super::super::paths::replaced_by;
use super::super::super::sections::Store;
use super::super::Check;
use super::super::storage::existing;

/// File systems on which layers cannot be, by the number that the kernel has for them, and why.
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
    "a server lets no user give files to ids of theirs, nor keep attributes of overlays";

const HINT: &str =
    "set `root` under [store] to a directory of this user on ext4, xfs, btrfs or tmpfs";

/// Looks at the file system of the images.
pub fn file_system(store: &Store) -> Option<Check> {
    let there = existing(&store.root);
    let file = open(&there, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = u32::try_from(fstatfs(&file).ok()?.f_type & 0xffff_ffff).ok()?;
    let problem = unfit(kind, fstatvfs(&file).ok()?.f_flag)?;
    Some(Check::fail("file system", format!("{} is {problem}", there.display()), HINT))
}

/// Returns why layers cannot be on a file system, by its kind and how it is mounted.
fn unfit(kind: u32, flags: StatVfsMountFlags) -> Option<String> {
    if let Some((_, name, why)) = UNFIT.iter().find(|(number, ..)| *number == kind) {
        return Some(format!("on {name}: {why}"));
    }
    flags
        .contains(StatVfsMountFlags::NOEXEC)
        .then(|| "mounted noexec: nothing in images can be executed".to_owned())
}

/// Looks whether this user can write where images and records are to be.
pub fn writable(name: &'static str, key: &str, path: &Path) -> Option<Check> {
    let there = existing(path);
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let error = accessat(CWD, &there, access, AtFlags::EACCESS).err()?;
    let error = io::Error::from(error);
    let found = format!("{} cannot be written: {error}", there.display());
    let hint = format!("name a directory of this user as `{key}` under [store]");
    Some(Check::fail(name, found, hint))
}

/// Reports a run directory that takes the place of one which another user created.
pub fn replaced(run: &Path) -> Option<Check> {
    let usual = replaced_by(run)?;
    let found = format!("{}, since {} is not this user's alone", run.display(), usual.display());
    let hint = "loginctl enable-linger: then it is in the user's runtime directory";
    Some(Check::warn("run directory", found, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_will_not_do_are_known() {
        let none = StatVfsMountFlags::empty();
        assert_eq!(unfit(0xef53, none), None, "ext4");
        assert_eq!(unfit(0x0102_1994, StatVfsMountFlags::NOSUID), None, "tmpfs");
        assert!(unfit(0x6969, none).unwrap().starts_with("on NFS: a server lets no user"));
        assert!(unfit(0xef53, StatVfsMountFlags::NOEXEC).unwrap().starts_with("mounted noexec"));
    }

    #[test]
    fn what_is_not_there_yet_is_writable_if_it_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(writable("store", "root", &dir.path().join("a/b")).is_none());
        let store = Store { root: dir.path().join("a"), ..Store::default() };
        // Whatever it is on, it is said with the directory that is there.
        if let Some(check) = file_system(&store) {
            let found = serde_json::to_string(&check).unwrap();
            assert!(found.contains(dir.path().to_str().unwrap()), "{found}");
        }
    }
}
