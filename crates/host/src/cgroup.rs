//! Creates, limits and removes cgroups, kills all processes in them, and reads the events of their limits. Runtimes
//! move containers into their cgroups. The engine calls it for containers, and step-runner for steps.

use std::fs::{self, File};
use std::path::Path;

use tracing::debug;

use self::hierarchy::{hierarchies, keep_parents, poll_until};

mod available;
mod below;
mod group;
mod hierarchy;
mod processes;
mod slice;
mod tree;

pub use available::AvailableCgroups;
pub use below::{ChildCgroup, own_cgroup, remove_recorded};
pub(crate) use below::{process_cgroup, remove_mounted};
pub use group::{ContainerGroup, remove_container_cgroup, remove_group};
pub(crate) use hierarchy::MOUNT;
pub use hierarchy::PARENT;
pub use processes::{LimitEvents, events, process_limit};
pub use slice::GroupLimits;

/// Kills all processes in a cgroup, named as in `linux.cgroupsPath`, and in its children. Returns whether
/// no process is left.
pub fn kill(path: &str) -> bool {
    debug!(cgroup = path, "kill all processes of a cgroup");
    for_each_directory(path, |dir| poll_until(|| tree::kill(dir)))
}

/// Kills all processes in a cgroup, and removes it and its children. Returns whether the cgroup is gone.
pub fn remove(path: &str) -> bool {
    debug!(cgroup = path, "remove a cgroup");
    for_each_directory(path, |dir| poll_until(|| tree::remove(dir)))
}

/// Calls `act` for the existing directories of a cgroup in all hierarchies. Returns whether all calls returned true.
fn for_each_directory(path: &str, act: fn(&Path) -> bool) -> bool {
    let path = &directory(path);
    if path.is_empty() || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return false;
    }
    let directories = hierarchies(Path::new(MOUNT)).into_iter().map(|root| root.join(path));
    let results: Vec<bool> = directories.filter(|dir| dir.exists()).map(|dir| act(&dir)).collect();
    results.into_iter().all(|is_well| is_well)
}

/// Moves this process to a cgroup, and creates the cgroup if it is missing. A process that must
/// outlive its systemd service calls this: systemd kills all processes in the cgroup of a stopping
/// service.
///
/// Returns whether the process entered the cgroup in any hierarchy: some hierarchies of version 1,
/// such as `cpuset`, accept no process before they are configured.
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

/// Prevents all processes from [removing](remove_if_empty) the parents of a container's cgroup until the returned file
/// is dropped, and limits the processes of all containers below [`PARENT`] together.
///
/// Returns `None` if removal cannot be prevented.
pub fn keep_parents_of(path: &str) -> Option<File> {
    let kept = keep_parents();
    if path.starts_with(PARENT) {
        processes::limit_all();
    }
    kept
}

/// Removes a cgroup that several containers share, unless it has containers or is [kept](keep_parents_of) for new ones.
pub fn remove_if_empty(path: &str) {
    let Ok(root) = File::open(MOUNT) else { return };
    if root.try_lock().is_err() {
        return;
    }
    for root in hierarchies(Path::new(MOUNT)) {
        let _ = fs::remove_dir(root.join(path.trim_start_matches('/')));
    }
}

/// Returns the directory of a cgroup, relative to the root of a hierarchy. `path` is either a path
/// or `SLICE:PREFIX:NAME`, which names a systemd scope.
fn directory(path: &str) -> String {
    match path.split(':').collect::<Vec<_>>()[..] {
        [slice, prefix, name] => format!("{}/{prefix}-{name}.scope", slice::directory(slice)),
        _ => path.trim_start_matches('/').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_scopes_are_found_by_the_names_of_runtimes() {
        assert_eq!(directory("system.slice:oci-hooks:1a"), "system.slice/oci-hooks-1a.scope");
        assert_eq!(directory("/oci-hooks/1a"), "oci-hooks/1a");
        assert_eq!(
            directory("ocihooks-1b.slice:oci-hooks:1a"),
            "ocihooks.slice/ocihooks-1b.slice/oci-hooks-1a.scope"
        );
    }

    #[test]
    fn paths_stay_within_the_hierarchy() {
        for path in ["", "/", "/a/../b", "a//b", "..:a:b/..", "/./a"] {
            assert!(!remove(path), "{path}");
        }
    }
}
