//! Finds the processes of a container, by their cgroups and root file systems in `/proc`. It changes none of them:
//! `remove` kills those that it finds.

use std::{fs, io};

use oci_hooks_host::identity::ProcessIdentity;

/// Returns whether a process belongs to the container with this id.
pub fn belongs_to(pid: u32, id: &str) -> bool {
    // Compare only the id, which is unique: the rest of the path depends on the cgroup namespace.
    let has_id = |line: &str| line.split('/').skip(1).any(|part| part.contains(id));
    read_proc(pid, "cgroup").lines().any(has_id) || is_rooted_in(pid, id)
}

/// Returns whether the root file system of a process is below a directory of this name, in any mount
/// namespace: its overlay's upper directory, or the directory itself.
///
/// A process cannot change its root mount without `CAP_SYS_ADMIN`, and never to that of another container.
fn is_rooted_in(pid: u32, name: &str) -> bool {
    let mounts = read_proc(pid, "mountinfo");
    root(&mounts).is_some_and(|line| line.split(['/', ',', ' ', '=', ':']).any(|part| part == name))
}

/// Returns the processes whose root is below a directory of this name.
pub fn rooted_in(name: &str) -> io::Result<Vec<ProcessIdentity>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(Ok(pid)) = entry?.file_name().into_string().map(|name| name.parse()) else {
            continue;
        };
        // Before the mounts, to notice if the PID is reused meanwhile.
        let Some(process) = ProcessIdentity::of(pid) else { continue };
        if is_rooted_in(pid, name) && process.is_running() {
            found.push(process);
        }
    }
    Ok(found)
}

/// Returns the line of a `mountinfo` file for the topmost mount on `/`; see proc_pid_mountinfo(5).
fn root(mounts: &str) -> Option<&str> {
    mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/"))
}

/// Returns the text of a file in `/proc`, or an empty one. Paths in it need not be UTF-8.
fn read_proc(pid: u32, name: &str) -> String {
    let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_root_is_recognized_by_its_directory() {
        let overlay = "1 1 0:30 / / rw - overlay overlay rw,lowerdir=/l/ab:/l/cd,upperdir=/d/1a/upper,workdir=/d/1a/work";
        let other = "2 1 0:31 / /mnt rw - overlay overlay rw,upperdir=/d/2b/upper";
        let both = format!("{overlay}\n{other}\n");
        assert_eq!(root(&both), Some(overlay));
        assert_eq!(root(other), None);
        let above = "3 1 0:32 /d/3c/rootfs / rw - ext4 /dev/vda rw";
        assert_eq!(root(&format!("{both}{above}")), Some(above));
    }

    #[test]
    fn this_process_is_in_no_container_root() {
        assert!(!is_rooted_in(std::process::id(), &"1a".repeat(32)));
        assert_eq!(rooted_in(&"1a".repeat(32)).unwrap(), []);
    }
}
