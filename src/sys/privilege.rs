//! What this process may do: as root of the host, or as an ordinary user who is root of a job's holder.
//!
//! It is asked once, at a program's door, and handed on as a value. What depends on it is a question
//! here, answered for each kind side by side; nobody else asks for user id 0.

mod ids;

use std::io;
use std::path::Path;

pub use ids::Ids;

/// What this process may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privilege {
    /// Root of the host.
    #[default]
    Root,
    /// Root of a user namespace that has ids of a user's own: user 0 is that user, and further ones are
    /// of their ranges in `/etc/subuid` and `/etc/subgid`.
    Mapped(Ids),
    /// A user without such ranges: user 0 and group 0 are all there are.
    Single,
}

impl Privilege {
    /// Returns what the calling process may do where it is now.
    pub fn of_process() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Privilege::Single);
        }
        Ok(match Ids::of_namespace(Path::new("/proc/self"))? {
            None => Privilege::Root,
            Some(Ids::SINGLE) => Privilege::Single,
            Some(ids) => Privilege::Mapped(ids),
        })
    }

    /// Returns how many user and group ids there are from 0 on; none if all of the host's.
    pub fn ids(self) -> Option<Ids> {
        match self {
            Privilege::Root => None,
            Privilege::Mapped(ids) => Some(ids),
            Privilege::Single => Some(Ids::SINGLE),
        }
    }

    /// Returns whether the kernel maps the owners of files in a mount, so that containers can have user
    /// namespaces of their own and a runner's files be its own: it does for root of the host alone.
    pub fn has_idmapped_mounts(self) -> bool {
        self == Privilege::Root
    }
}
