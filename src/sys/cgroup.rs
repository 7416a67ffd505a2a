//! The cgroups of containers: what they may have and met, and how what is left of one goes: its
//! processes are killed, its directories removed.

mod available;
mod below;
mod events;
mod group;
mod own;
mod processes;
mod slice;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tracing::debug;

pub use available::Cgroups;
pub(in crate::sys) use below::remove_mounted;
pub use below::{Below, remove_recorded};
pub use events::{Events, events};
pub use group::{Group, GroupLimits, remove_group};
pub(in crate::sys) use own::{of_process, own};
pub use processes::{limit_all, share_of_processes};

/// What all containers are in whose cgroups are not systemd's.
pub const PARENT: &str = "/oci-hooks";

/// Where cgroups are, in version 1 one hierarchy a directory.
const MOUNT: &str = "/sys/fs/cgroup";

/// How long killed processes may take to leave a cgroup.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long it is waited for who removes empty cgroups.
const PARENTS_TIMEOUT: Duration = Duration::from_millis(200);

/// Kills everything in a cgroup, named as in `linux.cgroupsPath`, and in its children. Returns whether
/// nothing runs there any more.
pub fn kill(path: &str) -> bool {
    debug!(cgroup = path, "kill all processes of a cgroup");
    each(path, kill_in)
}

/// Kills everything in a cgroup, and removes it and its children. Returns whether it is gone.
pub fn remove(path: &str) -> bool {
    debug!(cgroup = path, "remove a cgroup");
    each(path, remove_directory)
}

/// Does something with the directories of a cgroup that are there. Returns whether all went well.
fn each(path: &str, act: fn(&Path) -> bool) -> bool {
    let path = &directory(path);
    if path.is_empty() || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return false;
    }
    let directories = hierarchies(Path::new(MOUNT)).into_iter().map(|root| root.join(path));
    let results: Vec<bool> = directories.filter(|dir| dir.exists()).map(|dir| act(&dir)).collect();
    results.into_iter().all(|is_well| is_well)
}

/// Moves this process to a cgroup, which is made if it is not there. Whoever started us, as a service
/// of systemd does, may end all that is left in the cgroup we were in.
///
/// Returns whether it is in that cgroup now in any hierarchy: some do not take a process until they
/// are told more.
pub fn enter(path: &str) -> bool {
    debug!(cgroup = path, "enter a cgroup");
    let path = path.trim_start_matches('/');
    let _parents = keep_parents();
    let mut entered = false;
    for root in hierarchies(Path::new(MOUNT)) {
        let dir = root.join(path);
        entered |=
            fs::create_dir_all(&dir).is_ok() && fs::write(dir.join("cgroup.procs"), "0").is_ok();
    }
    entered
}

/// Returns whether a process is in the cgroup of a container with this id, or in one below it.
pub fn is_of(pid: u32, id: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    // By the id alone, which nobody else has: what is above it depends on whose cgroups we see.
    text.lines().any(|line| line.split('/').skip(1).any(|part| part.contains(id)))
}

/// Keeps cgroups that several containers are in from [being removed](remove_if_empty) for being empty,
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

/// Removes a cgroup that other containers may be in, unless they are or are about to be.
pub fn remove_if_empty(path: &str) {
    let Ok(root) = File::open(MOUNT) else { return };
    if root.try_lock().is_err() {
        return;
    }
    for root in hierarchies(Path::new(MOUNT)) {
        let _ = fs::remove_dir(root.join(path.trim_start_matches('/')));
    }
}

/// Kills everything in the cgroup that is a container's alone, whichever group that was in, and removes
/// it. Cgroups that systemd makes go with their last process.
pub fn remove_of(id: &str) {
    remove(&format!("{PARENT}/{id}"));
    for group in group::all(Path::new(MOUNT)) {
        remove(&format!("{PARENT}/{group}/{id}"));
    }
}

/// Returns the directory of a cgroup in its hierarchies: of `SLICE:PREFIX:NAME`, that of the scope
/// which systemd is asked for.
fn directory(path: &str) -> String {
    match path.split(':').collect::<Vec<_>>()[..] {
        [slice, prefix, name] => format!("{}/{prefix}-{name}.scope", slice::directory(slice)),
        _ => path.trim_start_matches('/').to_owned(),
    }
}

/// Returns the roots of all hierarchies: the mount itself for version 2, its directories for 1.
fn hierarchies(mount: &Path) -> Vec<PathBuf> {
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

fn kill_in(dir: &Path) -> bool {
    until(|| {
        kill_all(dir);
        children(dir).iter().all(|child| kill_in(child)) && is_empty(dir)
    })
}

fn remove_directory(dir: &Path) -> bool {
    until(|| {
        kill_all(dir);
        for child in children(dir) {
            remove_directory(&child);
        }
        fs::remove_dir(dir).is_ok() || !dir.exists()
    })
}

/// Does something again and again until it is done; returns whether that came in time. The kernel has no
/// event for "the last process left" that works in both versions.
fn until(is_done: impl Fn() -> bool) -> bool {
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
fn is_empty(dir: &Path) -> bool {
    // Version 2 has no list of the processes of one with threads.
    if let Ok(events) = fs::read_to_string(dir.join("cgroup.events")) {
        return events.lines().any(|line| line == "populated 0");
    }
    match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(processes) => processes.is_empty(),
        Err(_) => !dir.exists(),
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn kill_all(dir: &Path) {
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
    fn scopes_of_systemd_are_found_by_the_name_that_runtimes_give_them() {
        assert_eq!(directory("system.slice:oci-hooks:1a"), "system.slice/oci-hooks-1a.scope");
        assert_eq!(directory("/oci-hooks/1a"), "oci-hooks/1a");
        assert_eq!(
            directory("ocihooks-1b.slice:oci-hooks:1a"),
            "ocihooks.slice/ocihooks-1b.slice/oci-hooks-1a.scope"
        );
    }

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

    #[test]
    fn no_path_leads_out_of_the_hierarchy() {
        for path in ["", "/", "/a/../b", "a//b", "..:a:b/..", "/./a"] {
            assert!(!remove(path), "{path}");
        }
    }
}
