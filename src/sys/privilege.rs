//! What this process may do: as root of the host, or as an ordinary user who is root of a job's holder.
//!
//! A program finds it out once, when it starts or enters namespaces, and hands it on as a value. Everything that
//! depends on it is a method here; no other code compares user ids with 0.

pub mod cgroup;
mod clone;
mod enter;
mod error;
mod holder;
mod map;
pub mod outside;
mod owners;
mod ranges;
mod surroundings;
mod world;

use std::io;
use std::ops;
use std::path::Path;

pub use clone::exit_at_once;
pub(in crate::sys) use clone::use_root;
pub use enter::{Attendant, Inside, Side, enter_new};
pub use error::PrivilegeError;
pub use holder::{Holder, NewHolder, make_lock};
pub use map::{Map, find};
pub use ranges::{Ids, Range, Ranges};
pub use surroundings::missing as missing_in_container;

use super::mount::OverlayAttributes;
use super::userns::PrivateIds;

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

    /// Returns the same, but never more than a process may that is not user 0.
    pub fn at_most_own(self) -> Self {
        if rustix::process::geteuid().is_root() { self } else { Privilege::Single }
    }

    /// Returns whether files can belong to the users and groups that an image says, as far as there are
    /// such; else all of them belong to the calling process.
    pub fn has_owners(self) -> bool {
        match self {
            Privilege::Root | Privilege::Mapped(_) => true,
            Privilege::Single => false,
        }
    }

    /// Returns in which extended attributes overlays keep their own: in a user namespace nobody can set or
    /// see those of root.
    pub fn overlay_attributes(self) -> OverlayAttributes {
        match self {
            Privilege::Root => OverlayAttributes::Trusted,
            Privilege::Mapped(_) | Privilege::Single => OverlayAttributes::User,
        }
    }

    /// Returns whether device nodes can be made; where not, those that are there can be mounted. A
    /// whiteout is none: anybody can make one.
    pub fn can_make_devices(self) -> bool {
        self == Privilege::Root
    }

    /// Returns whether a process with the capabilities for it can give others more than its own limits, or
    /// an OOM score adjustment below its own: the kernel asks for those of the host.
    pub fn can_exceed_limits(self) -> bool {
        self == Privilege::Root
    }

    /// Returns whether there is a user with this id.
    pub fn has_user(self, uid: u32) -> bool {
        self.ids().is_none_or(|ids| uid < ids.uids)
    }

    /// Returns whether there is a group with this id.
    pub fn has_group(self, gid: u32) -> bool {
        self.ids().is_none_or(|ids| gid < ids.gids)
    }

    /// Returns the last group id that the kernel takes for a range of groups from 0 on; none if there is
    /// but one, which is as good as no range.
    pub fn last_gid(self) -> Option<u32> {
        match self {
            Privilege::Root => Some(i32::MAX.cast_unsigned()),
            Privilege::Mapped(ids) => {
                Some(ids.gids.saturating_sub(1).min(i32::MAX.cast_unsigned()))
            }
            Privilege::Single => None,
        }
    }

    /// Returns whether root of any container is somebody else than root of the host, as all are in a user
    /// namespace already.
    pub fn has_own_users(self) -> bool {
        self != Privilege::Root
    }

    /// Returns whether file systems can be mounted that are in files, by loop devices.
    pub fn has_loop_devices(self) -> bool {
        self == Privilege::Root
    }

    /// Returns whether the network namespace of this process is one of its own, which has no way out but by a
    /// program: what is outside of it is in the host's network.
    pub fn has_own_network(self) -> bool {
        self != Privilege::Root
    }

    /// Returns the ids that files can belong to which containers made, besides those of whose they are.
    pub fn container_ids(self) -> ops::Range<u32> {
        match self {
            Privilege::Root => PrivateIds::ALL,
            Privilege::Mapped(ids) => 1..ids.uids.max(ids.gids).max(1),
            Privilege::Single => 1..1,
        }
    }

    /// Returns whether a runner's directories are lent to containers that run as another user by access
    /// control lists: where the kernel maps no owners, and where there are other users.
    pub fn lends_by_lists(self) -> bool {
        match self {
            Privilege::Root | Privilege::Single => false,
            Privilege::Mapped(_) => true,
        }
    }

    /// Returns the user and group whose every runner's files are; none if each has its own.
    pub fn only_runner(self) -> Option<(u32, u32)> {
        match self {
            Privilege::Root => None,
            Privilege::Mapped(_) | Privilege::Single => Some((0, 0)),
        }
    }

    /// Returns whether the kernel maps the owners of files in a mount, so that containers can have user
    /// namespaces of their own and a runner's files be its own: it does for root of the host alone.
    pub fn has_idmapped_mounts(self) -> bool {
        self == Privilege::Root
    }
}
