//! Detection of the cgroups and controllers that are available for containers.

use std::fs;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::hierarchy::MOUNT;
use crate::privilege::Privilege;

/// The cgroups that a process may create for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AvailableCgroups {
    /// All cgroups of the host, with all controllers: the runtime returns an error if the kernel lacks one.
    Host,
    /// Cgroups of version 2 that were delegated to a user, with their controllers, in no order.
    Delegated(Vec<String>),
    /// No cgroups: containers stay in the cgroup of the process that starts them.
    None,
}

impl AvailableCgroups {
    /// Returns the cgroups of a process with this privilege.
    pub fn of(privilege: Privilege) -> Self {
        match privilege {
            Privilege::Root => AvailableCgroups::Host,
            Privilege::Mapped(_) | Privilege::Single => AvailableCgroups::at(Path::new(MOUNT)),
        }
    }

    fn at(mount: &Path) -> Self {
        let is_ours = |file: &str| {
            accessat(CWD, mount.join(file), Access::WRITE_OK, AtFlags::EACCESS).is_ok()
        };
        match fs::read_to_string(mount.join("cgroup.controllers")) {
            // Controllers enabled for children: the root of a namespace may have more.
            Ok(_) if is_ours("") && is_ours("cgroup.procs") => {
                let list = fs::read_to_string(mount.join("cgroup.subtree_control"));
                let list = list.unwrap_or_default();
                AvailableCgroups::Delegated(list.split_whitespace().map(str::to_owned).collect())
            }
            _ => AvailableCgroups::None,
        }
    }

    /// Returns whether containers can have cgroups.
    pub fn are_usable(&self) -> bool {
        *self != AvailableCgroups::None
    }

    /// Returns whether limits of a controller, such as `memory`, are enforced.
    pub fn has(&self, controller: &str) -> bool {
        match self {
            AvailableCgroups::Host => true,
            AvailableCgroups::Delegated(controllers) => {
                controllers.iter().any(|name| name == controller)
            }
            AvailableCgroups::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_enforced_if_their_controllers_are_delegated() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(AvailableCgroups::at(mount.path()), AvailableCgroups::None);
        for (file, text) in [
            ("cgroup.controllers", "cpu io memory pids\n"),
            ("cgroup.subtree_control", "memory pids\n"),
            ("cgroup.procs", ""),
        ] {
            fs::write(mount.path().join(file), text).unwrap();
        }
        let cgroups = AvailableCgroups::at(mount.path());
        assert!(cgroups.are_usable() && cgroups.has("memory") && cgroups.has("pids"));
        assert!(!cgroups.has("cpu"), "{cgroups:?}");
        assert!(AvailableCgroups::Host.has("io") && !AvailableCgroups::None.has("memory"));
    }
}
