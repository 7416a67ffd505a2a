//! Directories of cgroups in all hierarchies: where they are, what is in them, and how that ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What all containers are in whose cgroups are not systemd's.
pub const PARENT: &str = "/oci-hooks";

/// Where cgroups are, in version 1 one hierarchy a directory.
pub const MOUNT: &str = "/sys/fs/cgroup";

/// How long killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long it is waited for who removes empty cgroups.
const PARENTS_TIMEOUT: Duration = Duration::from_millis(200);

/// Keeps cgroups that several containers are in from [being removed](super::remove_if_empty) for being empty,
/// by whichever process, until what this returns is dropped. A runtime makes the parents of a cgroup
/// first and then itself, and fails if they go in between.
pub fn keep_parents() -> Option<File> {
    keep_parents_in(Path::new(MOUNT))
}

fn keep_parents_in(mount: &Path) -> Option<File> {
    // The place itself is locked: engines that share nothing else share it. Who removes has it for a
    // moment; anybody else who locked it must not keep containers from being made.
    let root = File::open(mount).ok()?;
    let end = Instant::now() + PARENTS_TIMEOUT;
    while root.try_lock_shared().is_err() {
        if Instant::now() > end {
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Some(root)
}

/// Returns the roots of all hierarchies: the mount itself for version 2, its directories for 1.
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

/// Does something again and again until it is done; returns whether that came in time. The kernel has no
/// event for "the last process left" that works in both versions.
pub fn until(is_done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + TIMEOUT;
    let mut pause = Duration::from_micros(200);
    while !is_done() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    true
}

/// Returns whether a cgroup has no processes, or is gone.
pub fn is_empty(dir: &Path) -> bool {
    // Version 2 has no list of the processes of one with threads.
    if let Ok(events) = fs::read_to_string(dir.join("cgroup.events")) {
        return events.lines().any(|line| line == "populated 0");
    }
    match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(processes) => processes.is_empty(),
        Err(_) => !dir.exists(),
    }
}

pub(crate) fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

pub(crate) fn kill_all(dir: &Path) {
    // Version 2 has this file since Linux 5.14. It also kills processes that are just being forked, but none whose
    // first thread has exited: the signal goes to that thread.
    let _ = fs::write(dir.join("cgroup.kill"), "1");
    let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_kept_for_any_number_of_containers_at_once() {
        let mount = tempfile::tempdir().unwrap();
        let first = keep_parents_in(mount.path()).expect("nobody has it for himself");
        let second = keep_parents_in(mount.path()).expect("others share it");
        let remover = File::open(mount.path()).unwrap();
        remover.try_lock().unwrap_err();
        drop(first);
        remover.try_lock().unwrap_err();
        drop(second);
        remover.try_lock().unwrap();
        assert!(keep_parents_in(mount.path()).is_none(), "not while somebody removes");
        assert!(keep_parents_in(&mount.path().join("none")).is_none());
    }
}
