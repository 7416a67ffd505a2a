//! Which cgroup of version 2 this process is in, as far as it is mounted here.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the directory of this process's cgroup, and the mount that it is in.
pub(in crate::sys) fn own() -> Option<(PathBuf, PathBuf)> {
    of_process(Path::new("/proc/self"))
}

/// Returns the directory of the cgroup of a process, whose directory in `/proc` this is, and the mount that
/// it is in.
pub(in crate::sys) fn of_process(process: &Path) -> Option<(PathBuf, PathBuf)> {
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
pub(super) fn mounts() -> Vec<(PathBuf, PathBuf)> {
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
    fn mounts_of_version_2_are_told_from_others() {
        let line = "29 23 0:26 /docker/1a /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup rw";
        let both = (PathBuf::from("/docker/1a"), PathBuf::from("/sys/fs/cgroup"));
        assert_eq!(mount_of(line), Some(both));
        assert_eq!(mount_of("30 29 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
        assert_eq!(mount_of(""), None);
    }
}
