//! The cgroup hierarchies of versions 1 and 2.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::retry::retry_for;

/// Parent cgroup of all containers whose cgroups systemd does not manage.
pub const PARENT: &str = "/oci-hooks";

/// Mount point of cgroups; in version 1 it has one directory per hierarchy.
pub const MOUNT: &str = "/sys/fs/cgroup";

/// Time that killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for the lock of a process that removes empty cgroups.
const PARENTS_TIMEOUT: Duration = Duration::from_secs(2);

/// Prevents all processes from [removing](super::remove_if_empty) empty parent cgroups until the
/// returned file is dropped. A runtime creates the parents of a cgroup and then the cgroup, and
/// fails if they are removed in between.
///
/// Returns `None` if the mount point of cgroups cannot be opened, or if another process holds its
/// lock for more than two seconds: removal is not prevented then.
pub fn keep_parents() -> Option<File> {
    keep_parents_in(Path::new(MOUNT))
}

fn keep_parents_in(mount: &Path) -> Option<File> {
    // Lock the mount point, the only file that all engines share. A process that removes cgroups holds the
    // lock briefly; a lock held longer by another program must not prevent containers from starting.
    let root = File::open(mount).ok()?;
    retry_for(PARENTS_TIMEOUT, || root.try_lock_shared().ok())?;
    Some(root)
}

/// Returns the roots of all hierarchies: the mount point in version 2, its directories in version 1.
pub fn hierarchies(mount: &Path) -> Vec<PathBuf> {
    if mount.join("cgroup.controllers").exists() {
        return vec![mount.to_owned()];
    }
    let entries = fs::read_dir(mount).into_iter().flatten().flatten();
    // `cpu` may be a link to `cpu,cpuacct`.
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Polls a condition for up to five seconds; returns whether it became true. The kernel reports no
/// event for the end of the last process that works in both cgroup versions.
pub fn poll_until(is_done: impl Fn() -> bool) -> bool {
    retry_for(TIMEOUT, || is_done().then_some(())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_cgroups_are_kept_while_containers_use_them() {
        let mount = tempfile::tempdir().unwrap();
        let first = keep_parents_in(mount.path()).expect("no other process locks it");
        let second = keep_parents_in(mount.path()).expect("the lock is shared");
        let remover = File::open(mount.path()).unwrap();
        remover.try_lock().unwrap_err();
        drop(first);
        remover.try_lock().unwrap_err();
        drop(second);
        remover.try_lock().unwrap();
        assert!(keep_parents_in(mount.path()).is_none(), "not while a process removes cgroups");
        assert!(keep_parents_in(&mount.path().join("none")).is_none());
    }
}
