//! How many processes containers may have, of those that the host can have, and which limits they met.

use std::fs;
use std::path::{Path, PathBuf};

use super::directory;
use super::hierarchy::{MOUNT, PARENT, hierarchies};

/// What each container may have by default, where the host can have that many.
const USUAL: u64 = 32_768;

/// What a container has to have to be of any use.
const LEAST: u64 = 512;

/// Returns how many processes and threads a container may have of those of this host, where so many
/// jobs run: together they have half of what [all containers](limit_all) may have, so that one that
/// makes processes without end takes none from the others.
pub fn share_of_processes(jobs: usize) -> u64 {
    let roots = hierarchies(Path::new(MOUNT));
    let set = roots.iter().filter_map(|root| limit_of(&root.join(parent()).join("pids.max")));
    share(set.chain([all()]).min().expect("there is one"), jobs)
}

/// Limits all containers together to three quarters of the processes and threads that the host can
/// have, so that its administrator can always log in; a lower limit that is there stays. Hold
/// [`super::hierarchy::keep_parents`] meanwhile and until a container is made.
pub fn limit_all() {
    for root in hierarchies(Path::new(MOUNT)) {
        limit(&root, all());
    }
}

fn limit(root: &Path, most: u64) {
    // Version 1 has a directory for it, version 2 a file that says whether it is on.
    let has_pids = root.ends_with("pids") || root.join("cgroup.controllers").exists();
    let dir = root.join(parent());
    if !has_pids || fs::create_dir_all(&dir).is_err() {
        return;
    }
    let file = dir.join("pids.max");
    if !file.exists() {
        // As runtimes do for containers. Where it may not be, each container has its own limit still.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+pids");
    }
    if limit_of(&file).is_none_or(|now| now > most) {
        let _ = fs::write(file, most.to_string());
    }
}

/// Returns the limit in a file, if it is one.
fn limit_of(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn parent() -> &'static str {
    PARENT.trim_start_matches('/')
}

fn share(all: u64, jobs: usize) -> u64 {
    let jobs = u64::try_from(jobs).unwrap_or(u64::MAX).max(1);
    (all / 2 / jobs).clamp(LEAST, USUAL)
}

/// Returns what all containers may have.
fn all() -> u64 {
    let host = ["pid_max", "threads-max"].into_iter().filter_map(|name| {
        fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?.trim().parse().ok()
    });
    host.min().unwrap_or(USUAL) / 4 * 3
}

/// How often processes of a cgroup met its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// A process or thread was not made, because there were as many as there may be.
    pub processes: u64,
    /// A process was killed, because all had as much memory as they may have.
    pub killed_for_memory: u64,
}

/// Returns what happened in a cgroup, named as in `linux.cgroupsPath`; nothing where it is not known, or if
/// it is that of no container, which has no name.
pub fn events(path: &str) -> Events {
    if path.is_empty() {
        return Events::default();
    }
    let path = directory(path);
    let dirs = hierarchies(Path::new(MOUNT)).into_iter().map(|root| root.join(&path));
    let dirs: Vec<PathBuf> = dirs.collect();
    let read = |file: &str, key: &str| dirs.iter().find_map(|dir| value(&dir.join(file), key));
    Events {
        processes: read("pids.events", "max").unwrap_or_default(),
        // Version 2 and 1.
        killed_for_memory: read("memory.events", "oom_kill")
            .or_else(|| read("memory.oom_control", "oom_kill"))
            .unwrap_or_default(),
    }
}

/// Returns the number after a word in a file of such lines.
fn value(file: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(name, _)| *name == key)?.1.trim().parse().ok()
}

#[test]
fn numbers_are_found_by_their_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory.oom_control");
    fs::write(&file, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n").unwrap();
    assert_eq!(value(&file, "oom_kill"), Some(3));
    assert_eq!(value(&file, "max"), None);
    assert_eq!(value(&dir.path().join("no"), "max"), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_what_the_host_can_spare() {
        // A host with `kernel.pid_max = 32768`, and one with 4 194 304 and much memory.
        assert_eq!([1, 2, 10, 1000].map(|jobs| share(24_576, jobs)), [12_288, 6144, 1228, 512]);
        assert_eq!(
            [0, 1, 40, 100].map(|jobs| share(3_145_728, jobs)),
            [32_768, 32_768, 32_768, 15_728]
        );
        assert!(share_of_processes(1) < all());
    }

    #[test]
    fn a_limit_that_is_lower_stays() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "pids\n").unwrap();
        let file = root.path().join("oci-hooks/pids.max");
        for (before, after) in [("max\n", "1000"), ("5000\n", "1000"), ("77\n", "77\n")] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, before).unwrap();
            limit(root.path(), 1000);
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }
}
