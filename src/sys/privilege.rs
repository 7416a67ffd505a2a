//! What this process may do: as root of the host, or as an ordinary user who is root of a job's holder.
//!
//! It is asked once, at a program's door, and handed on as a value. What depends on it is a question
//! here, answered for each kind side by side; nobody else asks for user id 0.

mod clone;
mod enter;
mod error;
mod holder;
mod ids;
mod loopback;
mod map;
pub mod outside;
pub mod owners;
mod paths;
mod ranges;
mod world;

use std::io;
use std::path::Path;

pub use enter::{Attendant, Side, enter_new};
pub use error::PrivilegeError;
pub use holder::{Holder, NewHolder};
pub use ids::Ids;
pub use map::{Map, find};
pub use paths::UserPaths;
pub use ranges::{Range, Ranges};

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
    /// Returns whether the calling process is root of the host, and needs no holder. One that is root of a
    /// user namespace, as in some containers, is an ordinary user to the host.
    pub fn is_root_of_host() -> bool {
        matches!(Privilege::of_process(), Ok(Privilege::Root))
    }

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
