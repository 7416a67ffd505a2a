//! What a cgroup's processes were kept from.

use std::fs;
use std::path::{Path, PathBuf};

use super::directory;
use super::hierarchy::{MOUNT, hierarchies};

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
