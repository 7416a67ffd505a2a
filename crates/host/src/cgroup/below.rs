//! A cgroup of version 2 below that of this process: its processes are killed together, and can move only to
//! cgroups to which their user may write.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::retry::retry_for;
use rustix::fs::{Access, Mode, OFlags, access, open};
use tracing::debug;

use super::tree;

/// Time that killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A cgroup that this process created; removed on drop, together with its processes.
#[derive(Debug)]
pub struct ChildCgroup {
    dir: PathBuf,
    directory: OwnedFd,
}

impl ChildCgroup {
    /// Creates a cgroup with this name. Returns `None` if that is impossible: with version 1, a read-only mount, or
    /// as a user without a delegated cgroup.
    pub fn make(name: &str) -> Option<Self> {
        let (parent, _) = own_cgroup()?;
        // Moving a process requires write access to `cgroup.procs` of the common ancestor, too.
        access(parent.join("cgroup.procs"), Access::WRITE_OK).ok()?;
        let dir = parent.join(name);
        DirBuilder::new().mode(0o755).create(&dir).ok()?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let is_writable = access(dir.join("cgroup.procs"), Access::WRITE_OK);
        match is_writable.and_then(|()| open(&dir, flags, Mode::empty())) {
            Ok(directory) => {
                debug!(cgroup = %dir.display(), "make a cgroup");
                Some(ChildCgroup { dir, directory })
            }
            Err(_) => {
                let _ = fs::remove_dir(&dir);
                None
            }
        }
    }

    /// Returns the cgroup's directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the open directory, in which processes can be created.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns whether the cgroup has no processes.
    pub fn is_empty(&self) -> bool {
        tree::is_empty(&self.dir)
    }

    /// Returns the processes in the cgroup and its children, in no order.
    pub fn members(&self) -> Vec<u32> {
        tree::members(&self.dir)
    }

    /// Kills all processes in the cgroup and its children.
    pub fn kill(&self) {
        tree::kill(&self.dir);
    }
}

impl Drop for ChildCgroup {
    fn drop(&mut self) {
        remove_below(&self.dir, TIMEOUT);
    }
}

/// Kills all processes in a cgroup that [`ChildCgroup::make`] created, and removes it. If a process
/// does not end soon, as when it hangs in the kernel, the cgroup stays, and this is not an error.
///
/// # Errors
///
/// `InvalidInput` if the path is outside of all cgroup mounts, or its name is not the prefix and
/// hexadecimal digits.
pub fn remove_recorded(dir: &Path, prefix: &str) -> io::Result<()> {
    let is_named = dir
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix(prefix))
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_hexdigit()));
    if !is_named {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    remove_mounted(dir, TIMEOUT).map(|_| ())
}

/// Kills all processes in a cgroup of version 2, and removes it with its children. Returns whether it is gone before
/// the timeout.
///
/// # Errors
///
/// `InvalidInput` if the path is outside of all cgroup mounts.
pub fn remove_mounted(dir: &Path, timeout: Duration) -> io::Result<bool> {
    let is_plain = dir.is_absolute() && !dir.components().any(|part| part.as_os_str() == "..");
    let is_in_mount = mounts().iter().any(|(_, mount)| dir != mount && dir.starts_with(mount));
    if !(is_plain && is_in_mount) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(remove_below(dir, timeout))
}

fn remove_below(dir: &Path, timeout: Duration) -> bool {
    retry_for(timeout, || tree::remove(dir).then_some(())).is_some()
}

/// Returns the directory of this process's cgroup, and its mount point.
pub fn own_cgroup() -> Option<(PathBuf, PathBuf)> {
    process_cgroup(Path::new("/proc/self"))
}

/// Returns the directory of the cgroup of a process, and its mount point, given the process's directory in
/// `/proc`.
pub fn process_cgroup(process: &Path) -> Option<(PathBuf, PathBuf)> {
    let cgroups = fs::read_to_string(process.join("cgroup")).ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts().into_iter().find_map(|(root, mount)| {
        let below = Path::new(path).strip_prefix(&root).ok()?;
        let dir = mount.join(below);
        // Joining an empty path adds a trailing slash.
        let dir: PathBuf = dir.components().collect();
        dir.join("cgroup.procs").exists().then_some((dir, mount))
    })
}

/// Returns the root directory and the mount point of each mount of cgroups of version 2 (fields 4
/// and 5 of `/proc/self/mountinfo`).
pub fn mounts() -> Vec<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(mount_of).collect()
}

/// Parses a line of proc_pid_mountinfo(5): returns the root and the mount point of a mount of
/// cgroups of version 2, and `None` for other file systems.
fn mount_of(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    if kind.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    // A backslash escapes blanks in mountinfo; mount points of cgroups have none.
    (!at.contains('\\') && !root.contains("..")).then(|| (root.into(), at.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_cgroups_are_not_removed() {
        for path in ["/sys/fs/cgroup/user.slice", "/tmp/ours-1a", "ours-1a", "/ours-", "/../ours-1"]
        {
            assert!(remove_recorded(Path::new(path), "ours-").is_err(), "{path}");
        }
    }

    #[test]
    fn cgroup2_mounts_are_distinguished() {
        let line = "29 23 0:26 /docker/1a /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup rw";
        let both = (PathBuf::from("/docker/1a"), PathBuf::from("/sys/fs/cgroup"));
        assert_eq!(mount_of(line), Some(both));
        assert_eq!(mount_of("30 29 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
        assert_eq!(mount_of(""), None);
    }
}
