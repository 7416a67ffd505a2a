//! The privilege of this process: root of the host, or a rootless user who is root in the user
//! namespace of a job's pause process.
//!
//! A program determines its privilege once, when it starts or enters namespaces, and passes it on
//! as a value. All consequences of the privilege are methods here.

mod cgroup;
mod clone;
mod enter;
mod error;
pub mod host_network;
mod map;
mod owners;
mod pause;
mod ranges;
mod setup;

use std::path::Path;
use std::{io, ops};

pub use cgroup::DelegatedCgroup;
pub use clone::exit_at_once;
pub(crate) use clone::{fork_with, use_root};
pub use enter::{ChildHandle, ForkSide, InsideProcess, enter_new};
pub use error::PrivilegeError;
pub use map::{IdMaps, find_id_map_program};
pub use pause::{NewPauseProcess, PauseProcess};
pub use ranges::{MappedIds, SubordinateIds, SubordinateRange};

use super::mount::OverlayAttributes;
use super::userns::PrivateIds;

/// The privilege of a process, by its user namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privilege {
    #[default]
    Root,
    /// Root of a user namespace of a rootless user: user 0 is that user, and higher ids are mapped to their
    /// subordinate ids in `/etc/subuid` and `/etc/subgid`.
    Mapped(MappedIds),
    /// A rootless user without subordinate ids: only user 0 and group 0 exist.
    Single,
}

impl Privilege {
    /// Returns whether the calling process is root of the host, and needs no pause process. Root of a user
    /// namespace, as in some containers, is not root of the host.
    pub fn is_root_of_host() -> bool {
        matches!(Privilege::of_process(), Ok(Privilege::Root))
    }

    /// Returns the privilege of the calling process in its current user namespace.
    pub fn of_process() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Privilege::Single);
        }
        Ok(match MappedIds::of_namespace(Path::new("/proc/self"))? {
            None => Privilege::Root,
            Some(MappedIds::SINGLE) => Privilege::Single,
            Some(ids) => Privilege::Mapped(ids),
        })
    }

    /// Returns the number of user and group ids that exist, counted from 0; `None` if all ids of
    /// the host exist.
    pub fn ids(self) -> Option<MappedIds> {
        match self {
            Privilege::Root => None,
            Privilege::Mapped(ids) => Some(ids),
            Privilege::Single => Some(MappedIds::SINGLE),
        }
    }

    /// Returns [`Single`](Self::Single) if the process is not user 0, and the same privilege otherwise.
    pub fn limit_to_own(self) -> Self {
        if rustix::process::geteuid().is_root() { self } else { Privilege::Single }
    }

    /// Returns whether files can belong to the users and groups of an image, as far as their ids exist;
    /// otherwise all files belong to the calling process.
    pub fn has_owners(self) -> bool {
        match self {
            Privilege::Root | Privilege::Mapped(_) => true,
            Privilege::Single => false,
        }
    }

    /// Returns the extended attributes that overlays use: in a user namespace, `trusted.*` cannot be set or
    /// read.
    pub fn overlay_attributes(self) -> OverlayAttributes {
        match self {
            Privilege::Root => OverlayAttributes::Trusted,
            Privilege::Mapped(_) | Privilege::Single => OverlayAttributes::User,
        }
    }

    /// Returns whether device nodes can be created; otherwise existing ones can be mounted. Whiteouts do not
    /// count: any user can create them.
    pub fn can_make_devices(self) -> bool {
        self == Privilege::Root
    }

    /// Returns whether a process can raise resource limits above its own, or set an OOM score adjustment below
    /// its own: the kernel requires capabilities of the host.
    pub fn can_exceed_limits(self) -> bool {
        self == Privilege::Root
    }

    /// Returns whether this user id exists.
    pub fn has_user(self, uid: u32) -> bool {
        self.ids().is_none_or(|ids| uid < ids.uids)
    }

    /// Returns whether this group id exists.
    pub fn has_group(self, gid: u32) -> bool {
        self.ids().is_none_or(|ids| gid < ids.gids)
    }

    /// Returns the last group id that the kernel accepts in `net.ipv4.ping_group_range`; `None` if only group 0
    /// exists.
    pub fn last_gid(self) -> Option<u32> {
        match self {
            Privilege::Root => Some(i32::MAX.cast_unsigned()),
            Privilege::Mapped(ids) => {
                Some(ids.gids.saturating_sub(1).min(i32::MAX.cast_unsigned()))
            }
            Privilege::Single => None,
        }
    }

    /// Returns whether root in a container is never root of the host, because this process, and so every container,
    /// is in a user namespace.
    pub fn has_own_users(self) -> bool {
        self != Privilege::Root
    }

    /// Returns whether file systems in files can be mounted, by loop devices.
    pub fn has_loop_devices(self) -> bool {
        self == Privilege::Root
    }

    /// Returns whether this process has its own network namespace, connected to the host's network only by an uplink
    /// program.
    pub fn has_own_network(self) -> bool {
        self != Privilege::Root
    }

    /// Returns the ids of files that containers created, besides the ids of the runner's user.
    pub fn private_ids(self) -> ops::Range<u32> {
        match self {
            Privilege::Root => PrivateIds::ALL,
            Privilege::Mapped(ids) => 1..ids.uids.max(ids.gids).max(1),
            Privilege::Single => 1..1,
        }
    }

    /// Returns whether a runner's directories are shared by access control lists with containers that run as another
    /// user: without idmapped mounts, if other users exist.
    pub fn uses_acls(self) -> bool {
        match self {
            Privilege::Root | Privilege::Single => false,
            Privilege::Mapped(_) => true,
        }
    }

    /// Returns the user and group of all runners' files; `None` if each runner has its own.
    pub fn only_runner(self) -> Option<(u32, u32)> {
        match self {
            Privilege::Root => None,
            Privilege::Mapped(_) | Privilege::Single => Some((0, 0)),
        }
    }

    /// Returns whether idmapped mounts are available, so that containers can have their own user namespaces while
    /// a runner's files keep their owner. The kernel permits them to root of the host only.
    pub fn has_idmapped_mounts(self) -> bool {
        self == Privilege::Root
    }
}
