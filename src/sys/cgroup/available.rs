//! Which cgroups containers can have, and what limits hold in them.

use std::fs;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::hierarchy::MOUNT;
use crate::sys::privilege::Privilege;

/// The cgroups that a process may make for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// Those of the host. What a kernel lacks its runtime reports.
    Host,
    /// Those of version 2 that were delegated to a user, with the controllers, in no order, that they have.
    Delegated(Vec<String>),
    /// There are none: containers are in the cgroup of whoever starts them.
    None,
}

impl Cgroups {
    /// Returns those that a process has which may do this.
    pub fn of(privilege: Privilege) -> Self {
        match privilege {
            Privilege::Root => Cgroups::Host,
            Privilege::Mapped(_) | Privilege::Single => Cgroups::at(Path::new(MOUNT)),
        }
    }

    fn at(mount: &Path) -> Self {
        let is_ours = |file: &str| {
            accessat(CWD, mount.join(file), Access::WRITE_OK, AtFlags::EACCESS).is_ok()
        };
        match fs::read_to_string(mount.join("cgroup.controllers")) {
            // What is handed out below, not what is there: the root of a namespace may hold some back.
            Ok(_) if is_ours("") && is_ours("cgroup.procs") => {
                let list = fs::read_to_string(mount.join("cgroup.subtree_control"));
                let list = list.unwrap_or_default();
                Cgroups::Delegated(list.split_whitespace().map(str::to_owned).collect())
            }
            _ => Cgroups::None,
        }
    }

    /// Returns whether containers can have cgroups.
    pub fn are_there(&self) -> bool {
        *self != Cgroups::None
    }

    /// Returns whether limits hold that need a controller, as `memory`.
    pub fn has(&self, controller: &str) -> bool {
        match self {
            Cgroups::Host => true,
            Cgroups::Delegated(controllers) => controllers.iter().any(|name| name == controller),
            Cgroups::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_by_the_controllers_that_are_handed_out() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(Cgroups::at(mount.path()), Cgroups::None);
        for (file, text) in [
            ("cgroup.controllers", "cpu io memory pids\n"),
            ("cgroup.subtree_control", "memory pids\n"),
            ("cgroup.procs", ""),
        ] {
            fs::write(mount.path().join(file), text).unwrap();
        }
        let cgroups = Cgroups::at(mount.path());
        assert!(cgroups.are_there() && cgroups.has("memory") && cgroups.has("pids"));
        assert!(!cgroups.has("cpu"), "{cgroups:?}");
        assert!(Cgroups::Host.has("io") && !Cgroups::None.has("memory"));
    }
}
