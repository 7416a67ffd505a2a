//! A cgroup of version 2 below that of this process: what is in it ends together, and leaves it only for
//! where who runs in it may write.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, Mode, OFlags, access, open};
use tracing::debug;

use super::hierarchy::{children, is_empty, kill_all};

/// How long killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How often it is looked whether they have.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A cgroup of this process's own making.
#[derive(Debug)]
pub struct Below {
    dir: PathBuf,
    procs: OwnedFd,
}

impl Below {
    /// Makes a cgroup with this name; none where none can be had: version 1, a mount that is read-only, an
    /// ordinary user whom nobody gave one.
    pub fn make(name: &str) -> Option<Self> {
        let (parent, _) = own()?;
        // Who moves a process must be able to write to what is above both cgroups, too.
        access(parent.join("cgroup.procs"), Access::WRITE_OK).ok()?;
        let dir = parent.join(name);
        DirBuilder::new().mode(0o755).create(&dir).ok()?;
        match open(dir.join("cgroup.procs"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(procs) => {
                debug!(cgroup = %dir.display(), "make a cgroup");
                Some(Below { dir, procs })
            }
            Err(_) => {
                let _ = fs::remove_dir(&dir);
                None
            }
        }
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the file by which processes enter it.
    pub fn procs(&self) -> &OwnedFd {
        &self.procs
    }

    /// Returns whether nothing runs in it.
    pub fn is_empty(&self) -> bool {
        is_empty(&self.dir)
    }

    /// Returns the processes in it, in no order.
    pub fn members(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let mut dirs = vec![self.dir.clone()];
        while let Some(dir) = dirs.pop() {
            let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(list.lines().filter_map(|line| line.parse::<u32>().ok()));
            dirs.extend(children(&dir));
        }
        found
    }

    /// Kills what is in it.
    pub fn kill(&self) {
        kill_all(&self.dir);
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        remove_below(&self.dir, TIMEOUT);
    }
}

/// Kills what is in a cgroup that [`Below::make`] made, and removes it. What does not end soon, as it hangs
/// in the kernel, stays with its cgroup.
///
/// # Errors
///
/// `InvalidInput` if the path is of no such cgroup: not in a mount of cgroups, or named differently.
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

/// Kills what is in a cgroup of version 2, and removes it with those below. Returns whether it is gone by the
/// end of a time.
///
/// # Errors
///
/// `InvalidInput` if the path is in no mount of cgroups.
pub fn remove_mounted(dir: &Path, timeout: Duration) -> io::Result<bool> {
    let is_plain = dir.is_absolute() && !dir.components().any(|part| part.as_os_str() == "..");
    let is_in_mount = mounts().iter().any(|(_, mount)| dir != mount && dir.starts_with(mount));
    if !(is_plain && is_in_mount) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(remove_below(dir, timeout))
}

fn remove_below(dir: &Path, timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    loop {
        kill_tree(dir);
        let is_gone = remove_tree(dir);
        if is_gone || Instant::now() > end {
            return is_gone;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn kill_tree(dir: &Path) {
    // Where the kernel has a file for it, the first call kills all; elsewhere each list is of one cgroup.
    kill_all(dir);
    children(dir).iter().for_each(|child| kill_tree(child));
}

fn remove_tree(dir: &Path) -> bool {
    children(dir).iter().for_each(|child| {
        remove_tree(child);
    });
    fs::remove_dir(dir).is_ok() || !dir.exists()
}

/// Returns the directory of this process's cgroup, and the mount that it is in.
pub fn own() -> Option<(PathBuf, PathBuf)> {
    of_process(Path::new("/proc/self"))
}

/// Returns the directory of the cgroup of a process, whose directory in `/proc` this is, and the mount that
/// it is in.
pub fn of_process(process: &Path) -> Option<(PathBuf, PathBuf)> {
    let cgroups = fs::read_to_string(process.join("cgroup")).ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts().into_iter().find_map(|(root, mount)| {
        let below = Path::new(path).strip_prefix(&root).ok()?;
        let dir = mount.join(below);
        // `/` adds a slash to what it is joined to.
        let dir: PathBuf = dir.components().collect();
        dir.join("cgroup.procs").exists().then_some((dir, mount))
    })
}

/// Returns the mounts of version 2: the root of each, and where it is.
pub fn mounts() -> Vec<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(mount_of).collect()
}

/// See proc_pid_mountinfo(5).
fn mount_of(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    if kind.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    // Names with blanks are escaped there; cgroups are mounted nowhere of the kind.
    (!at.contains('\\') && !root.contains("..")).then(|| (root.into(), at.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_as_ours_is_not_touched() {
        for path in ["/sys/fs/cgroup/user.slice", "/tmp/ours-1a", "ours-1a", "/ours-", "/../ours-1"]
        {
            assert!(remove_recorded(Path::new(path), "ours-").is_err(), "{path}");
        }
    }

    #[test]
    fn mounts_of_version_2_are_told_from_others() {
        let line = "29 23 0:26 /docker/1a /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup rw";
        let both = (PathBuf::from("/docker/1a"), PathBuf::from("/sys/fs/cgroup"));
        assert_eq!(mount_of(line), Some(both));
        assert_eq!(mount_of("30 29 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
        assert_eq!(mount_of(""), None);
    }
}
