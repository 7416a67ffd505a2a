//! Processes by the root file system that they see, where there is no cgroup to know them by.

use std::fs;
use std::io;

use super::identity::Identity;

/// Returns whether the root file system of a process is below a directory of this name, in whatever mount
/// namespace: its overlay's upper directory, or the directory itself.
///
/// A process cannot change that without `CAP_SYS_ADMIN`, and not to another container's at all.
pub fn is_rooted_in(pid: u32, name: &str) -> bool {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    root(&mounts).is_some_and(|line| line.split(['/', ',', ' ', '=', ':']).any(|part| part == name))
}

/// Returns the processes that [are](is_rooted_in) below a directory of this name.
pub fn rooted_in(name: &str) -> io::Result<Vec<Identity>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(Ok(pid)) = entry?.file_name().into_string().map(|name| name.parse()) else {
            continue;
        };
        // Looked up first: another process that gets the id meanwhile is none of them.
        let Some(process) = Identity::of(pid) else { continue };
        if is_rooted_in(pid, name) && process.is_running() {
            found.push(process);
        }
    }
    Ok(found)
}

/// Returns what is mounted on `/`, of several the last. See proc_pid_mountinfo(5).
fn root(mounts: &str) -> Option<&str> {
    mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_known_by_the_directory_it_is_in() {
        let overlay = "1 1 0:30 / / rw - overlay overlay rw,lowerdir=/l/ab:/l/cd,upperdir=/d/1a/upper,workdir=/d/1a/work";
        let other = "2 1 0:31 / /mnt rw - overlay overlay rw,upperdir=/d/2b/upper";
        let both = format!("{overlay}\n{other}\n");
        assert_eq!(root(&both), Some(overlay));
        assert_eq!(root(other), None);
        let above = "3 1 0:32 /d/3c/rootfs / rw - ext4 /dev/vda rw";
        assert_eq!(root(&format!("{both}{above}")), Some(above));
    }

    #[test]
    fn this_process_is_rooted_in_no_container() {
        assert!(!is_rooted_in(std::process::id(), &"1a".repeat(32)));
        assert_eq!(rooted_in(&"1a".repeat(32)).unwrap(), []);
    }
}
