//! Where a program's containers are, and what it may do there.

use std::path::PathBuf;

use crate::sys::privilege::Privilege;

/// What this process may do, and where what it makes is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub privilege: Privilege,
    /// Whether limits of containers hold: an ordinary user has a cgroup for them if one was delegated.
    pub has_cgroup: bool,
    /// Where containers and networks keep what does not outlive a boot, if not where the store does: each
    /// job of an ordinary user has its own.
    pub run: Option<PathBuf>,
    /// Where root file systems and volumes of containers are, if not where the store is.
    pub disk: Option<PathBuf>,
}

impl Default for Place {
    /// Returns that of root of the host.
    fn default() -> Self {
        Place { privilege: Privilege::Root, has_cgroup: true, run: None, disk: None }
    }
}

impl Place {
    /// Returns that of the calling process, as it was started.
    pub fn of_process() -> Self {
        // Whatever cannot be known of it, it may do nothing of.
        let privilege = Privilege::of_process().unwrap_or(Privilege::Single);
        Place { privilege, has_cgroup: privilege == Privilege::Root, run: None, disk: None }
    }
}
