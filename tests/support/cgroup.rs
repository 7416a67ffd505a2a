//! Cgroups of engines under test.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::program::{self, DEADLINE};

/// A parent for the cgroups of one engine, in whatever hierarchies the machine has. Engines make it
/// when they need it and leave it behind: it is removed when dropped.
pub(crate) struct CgroupParent {
    name: String,
}

impl CgroupParent {
    pub(crate) fn new() -> Self {
        Self { name: format!("/{}", program::unique_name()) }
    }

    /// Returns the absolute cgroup path.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for CgroupParent {
    fn drop(&mut self) {
        let top = Path::new("/sys/fs/cgroup");
        let inside = |hierarchy: &Path| hierarchy.join(&self.name[1..]);
        // Version 2 is mounted at the top; version 1 has a directory for each hierarchy below it.
        remove(&inside(top));
        for hierarchy in directories(top) {
            remove(&inside(&hierarchy));
        }
    }
}

/// Removes a cgroup with those below it, when the last processes in it, which clean up after a
/// container, have ended.
fn remove(cgroup: &Path) {
    for child in directories(cgroup) {
        remove(&child);
    }
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw) {
        // If there is none of this number any more, that is the end awaited.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
            let deadline = DEADLINE.try_into().expect("the deadline is short");
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&deadline));
        }
    }
    let _ = fs::remove_dir(cgroup);
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
