//! Cgroups of engines under test.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::program;

/// Time for a process to end by itself, and to be dead after SIGKILL.
const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// A parent cgroup for the containers of one engine, in every hierarchy of the machine. Engines create it on
/// demand and never remove it, so dropping the value does.
pub struct CgroupParent {
    name: String,
}

impl CgroupParent {
    #[expect(clippy::new_without_default, reason = "it is made on the machine")]
    pub fn new() -> Self {
        Self { name: format!("/{}", program::unique_name()) }
    }

    /// Returns the absolute cgroup path.
    pub fn name(&self) -> &str {
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

/// Removes a cgroup and its children, once the last processes in it, which clean up after a container, have ended.
fn remove(cgroup: &Path) {
    for child in directories(cgroup) {
        remove(&child);
    }
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw) {
        // An error means that the process has ended already.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
            let wait = || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&PATIENCE));
            if wait() == Ok(0) {
                let _ = pidfd_send_signal(&process, Signal::KILL);
                let _ = wait();
            }
        }
    }
    let _ = fs::remove_dir(cgroup);
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
