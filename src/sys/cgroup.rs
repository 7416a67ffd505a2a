//! The cgroups of containers: what they may have and met, and how what is left of one goes: its
//! processes are killed, its directories removed.

use std::fs::{self, File};
use std::path::Path;

use tracing::debug;

use self::hierarchy::{MOUNT, children, hierarchies, is_empty, kill_all, until};

mod available;
mod below;
mod group;
mod hierarchy;
mod processes;
mod slice;

pub use available::Cgroups;
pub use below::{Below, remove_recorded};
pub(in crate::sys) use below::{of_process, own, remove_mounted};
pub use group::{Group, remove_group, remove_of};
pub use hierarchy::{PARENT, keep_parents};
pub use processes::{Events, events, limit_all, share_of_processes};
pub use slice::GroupLimits;

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

/// Returns the directory of a cgroup in its hierarchies: of `SLICE:PREFIX:NAME`, that of the scope
/// which systemd is asked for.
fn directory(path: &str) -> String {
    match path.split(':').collect::<Vec<_>>()[..] {
        [slice, prefix, name] => format!("{}/{prefix}-{name}.scope", slice::directory(slice)),
        _ => path.trim_start_matches('/').to_owned(),
    }
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
    fn no_path_leads_out_of_the_hierarchy() {
        for path in ["", "/", "/a/../b", "a//b", "..:a:b/..", "/./a"] {
            assert!(!remove(path), "{path}");
        }
    }
}
