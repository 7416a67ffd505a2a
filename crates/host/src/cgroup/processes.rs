//! Limits of the number of processes of containers, and events of limits that were hit.

use std::fs;
use std::path::{Path, PathBuf};

use super::directory;
use super::hierarchy::{MOUNT, PARENT, hierarchies};

/// Default process limit of a container (`pids.max`), if the host's limits allow it.
const DEFAULT_PIDS: u64 = 32_768;

/// Minimum process limit of a container.
const MIN_PIDS: u64 = 512;

/// Returns the limit of processes and threads of a container on this host, given the number of jobs: all jobs
/// together get half of the limit of all containers, so that a fork bomb in one container does not
/// use up the limit of the others.
pub fn process_limit(jobs: usize) -> u64 {
    let roots = hierarchies(Path::new(MOUNT));
    let set = roots.iter().filter_map(|root| limit_of(&root.join(parent()).join("pids.max")));
    share(set.chain([total_process_limit()]).min().expect("there is one"), jobs)
}

/// Limits all containers together to three quarters of the processes and threads that the host can
/// have, so that its administrator can always log in; a lower existing limit stays. Hold
/// [`super::hierarchy::keep_parents`] during the call and until a container is created.
pub fn limit_all() {
    for root in hierarchies(Path::new(MOUNT)) {
        limit(&root, total_process_limit());
    }
}

fn limit(root: &Path, most: u64) {
    // Version 1 has a directory per controller; in version 2 the controller is enabled below.
    let has_pids = root.ends_with("pids") || root.join("cgroup.controllers").exists();
    let dir = root.join(parent());
    if !has_pids || fs::create_dir_all(&dir).is_err() {
        return;
    }
    let file = dir.join("pids.max");
    if !file.exists() {
        // As runtimes do for containers. If that is not permitted, each container still has its own limit.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+pids");
    }
    if limit_of(&file).is_none_or(|now| now > most) {
        let _ = fs::write(file, most.to_string());
    }
}

/// Returns the limit in a file; `None` for `max`, or if the file cannot be read.
fn limit_of(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn parent() -> &'static str {
    PARENT.trim_start_matches('/')
}

fn share(all: u64, jobs: usize) -> u64 {
    let jobs = u64::try_from(jobs).unwrap_or(u64::MAX).max(1);
    (all / 2 / jobs).clamp(MIN_PIDS, DEFAULT_PIDS)
}

/// Returns the process limit of all containers together.
fn total_process_limit() -> u64 {
    let host = ["pid_max", "threads-max"].into_iter().filter_map(|name| {
        fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?.trim().parse().ok()
    });
    host.min().unwrap_or(DEFAULT_PIDS) / 4 * 3
}

/// Number of times that the processes of a cgroup hit its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitEvents {
    /// Number of forks that failed because of the process limit.
    pub processes: u64,
    /// Number of processes killed because of the memory limit (OOM kills).
    pub killed_for_memory: u64,
}

/// Returns the events of a cgroup, named as in `linux.cgroupsPath`; zeros if they are unknown or the path is
/// empty.
pub fn events(path: &str) -> LimitEvents {
    if path.is_empty() {
        return LimitEvents::default();
    }
    let path = directory(path);
    let dirs = hierarchies(Path::new(MOUNT)).into_iter().map(|root| root.join(&path));
    let dirs: Vec<PathBuf> = dirs.collect();
    let read = |file: &str, key: &str| dirs.iter().find_map(|dir| value(&dir.join(file), key));
    LimitEvents {
        processes: read("pids.events", "max").unwrap_or_default(),
        // Version 2 and 1.
        killed_for_memory: read("memory.events", "oom_kill")
            .or_else(|| read("memory.oom_control", "oom_kill"))
            .unwrap_or_default(),
    }
}

/// Returns the value of a key in a file with lines of the form `KEY VALUE`.
fn value(file: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(name, _)| *name == key)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.oom_control");
        fs::write(&file, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n").unwrap();
        assert_eq!(value(&file, "oom_kill"), Some(3));
        assert_eq!(value(&file, "max"), None);
        assert_eq!(value(&dir.path().join("no"), "max"), None);
    }

    #[test]
    fn job_may_use_the_spare_processes_of_the_host() {
        // A host with `kernel.pid_max = 32768`, and one with 4 194 304 and much memory.
        assert_eq!([1, 2, 10, 1000].map(|jobs| share(24_576, jobs)), [12_288, 6144, 1228, 512]);
        assert_eq!(
            [0, 1, 40, 100].map(|jobs| share(3_145_728, jobs)),
            [32_768, 32_768, 32_768, 15_728]
        );
        assert!(process_limit(1) < total_process_limit());
    }

    #[test]
    fn lower_limit_is_kept() {
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
