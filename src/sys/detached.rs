//! Detached mounts: copies of what is mounted, and memory, that are nowhere yet.
//!
//! They are made from what is open and attached to what is open, so no name is looked up twice.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, mknodat,
    openat2,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use tracing::debug;

use super::beneath::retry;
use super::fs::{PathContext as _, PathError};
use super::host_file::HostFile;

/// Whether what is mounted below a directory is meant too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only its own file system; in a user namespace also what was mounted below it before, which the
    /// kernel does not uncover there.
    Single,
    /// That, and all below it.
    Recursive,
}

/// What a mount lets nobody do, and what it shows otherwise than it is on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    pub read_only: bool,
    /// Set-user-ID bits and file capabilities have no effect.
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// The user namespace of a [`Mapping`](super::userns::Mapping) by which owners are seen.
    pub owners: Option<BorrowedFd<'a>>,
    /// Whether mounts made below its origin later appear below it too (`rslave`); if not, nothing
    /// does in either direction (`rprivate`).
    pub is_slave: bool,
    /// Whether it stays a peer of its origin (`rshared`).
    pub is_shared: bool,
}

/// A mount that is nowhere yet, or was until it was attached.
#[derive(Debug)]
pub struct Detached {
    tree: OwnedFd,
    /// What it is called in messages.
    name: PathBuf,
    is_dir: bool,
    depth: Depth,
}

impl Detached {
    /// Copies the mount of what is open.
    pub fn copy_of(file: &HostFile, depth: Depth) -> Result<Self, PathError> {
        let name = PathBuf::from(file.display().to_string());
        Self::copy(file.as_fd(), name, file.is_dir(), depth)
    }

    fn copy(
        file: BorrowedFd<'_>,
        name: PathBuf,
        is_dir: bool,
        depth: Depth,
    ) -> Result<Self, PathError> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let all = || open_tree(file, c"", flags | OpenTreeFlags::AT_RECURSIVE);
        debug!(path = %name.display(), ?depth, "copy a mount");
        let copied = match depth {
            Depth::Recursive => all().map(|tree| (tree, depth)),
            Depth::Single => match open_tree(file, c"", flags) {
                // What was mounted over a part of it before a user namespace was made is not to be
                // uncovered there: it comes along, or nothing does.
                Err(Errno::INVAL) => all().map(|tree| (tree, Depth::Recursive)),
                copied => copied.map(|tree| (tree, depth)),
            },
        };
        let (tree, depth) = copied.at("copy the mount of", &name)?;
        Ok(Detached { tree, name, is_dir, depth })
    }

    /// Makes a file system in memory, with options as `size=64m`, `mode=700` or `noexec`.
    pub fn memory(options: &[String]) -> Result<Self, PathError> {
        let name = PathBuf::from("tmpfs");
        debug!(?options, "make a tmpfs");
        let made = (|| {
            let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            let mut attributes = MountAttrFlags::empty();
            for option in options {
                match option.split_once('=') {
                    Some((key, value)) => fsconfig_set_string(context.as_fd(), key, value)?,
                    None => match memory_attribute(option) {
                        Some(attribute) => attributes |= attribute,
                        None => fsconfig_set_flag(context.as_fd(), option.as_str())?,
                    },
                }
            }
            fsconfig_create(context.as_fd())?;
            fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        })();
        Ok(Detached {
            tree: made.at("make a file system in memory", &name)?,
            name,
            is_dir: true,
            depth: Depth::Single,
        })
    }

    /// Returns whether it is a directory; anything else is mounted on a file.
    pub fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// Sets attributes of it, and of all that is mounted below it if that was copied too.
    ///
    /// # Errors
    ///
    /// The source is `EINVAL` if its file system cannot map owners.
    pub fn set(&self, attributes: &Attributes<'_>) -> Result<(), PathError> {
        debug!(path = %self.name.display(), ?attributes, "set the attributes of a mount");
        set_attributes(self.tree.as_fd(), attributes, self.depth)
            .at("set the attributes of the mount of", &self.name)
    }

    /// Attaches it to a path of our own.
    pub fn attach(&self, target: &Path) -> Result<(), PathError> {
        debug!(source = %self.name.display(), on = %target.display(), "mount");
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(self.tree.as_fd(), c"", CWD, target, empty).at("mount on", target)
    }

    /// Attaches it to what is at a path beneath another mount, which no symbolic link leads to.
    ///
    /// # Errors
    ///
    /// The source is `ELOOP` if one does.
    pub fn attach_beneath(&self, above: &Detached, relative: &Path) -> Result<(), PathError> {
        let above_name = above.name.display();
        debug!(source = %self.name.display(), beneath = %above_name, on = %relative.display(), "mount");
        let target = above.open(relative).at("mount on", &above.name.join(relative))?;
        let empty =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(self.tree.as_fd(), c"", target.as_fd(), c"", empty)
            .at("mount on", &above.name.join(relative))
    }

    /// Makes what can be mounted on at a path beneath it, with missing directories above, as the
    /// calling thread, and gives them to an owner. What is there stays.
    pub fn make_mount_point(
        &self,
        relative: &Path,
        is_dir: bool,
        owner: Option<(u32, u32)>,
    ) -> io::Result<()> {
        if self.open(relative).is_ok() {
            return Ok(());
        }
        let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
            return Ok(());
        };
        let mut directory = self.open(Path::new("."))?;
        let mut so_far = PathBuf::new();
        for part in parent {
            so_far.push(part);
            let made = match mkdirat(&directory, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            directory = self.open(&so_far)?;
            if made {
                give(&directory, owner)?;
            }
        }
        let made = if is_dir {
            mkdirat(&directory, name, Mode::from_raw_mode(0o755))
        } else {
            mknodat(&directory, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
        };
        match made {
            Ok(()) => give(&self.open(relative)?, owner),
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a path beneath it that has no symbolic link in it.
    fn open(&self, relative: &Path) -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        retry(|| openat2(self.tree.as_fd(), relative, flags, Mode::empty(), resolve))
    }
}

impl AsFd for Detached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }
}

/// Gives what is open to an owner, if there is to be one.
fn give(file: &OwnedFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)?)
}

/// Returns the attribute of a mount that a word among the options of a file system stands for.
fn memory_attribute(option: &str) -> Option<MountAttrFlags> {
    Some(match option {
        "ro" => MountAttrFlags::MOUNT_ATTR_RDONLY,
        "nosuid" => MountAttrFlags::MOUNT_ATTR_NOSUID,
        "nodev" => MountAttrFlags::MOUNT_ATTR_NODEV,
        "noexec" => MountAttrFlags::MOUNT_ATTR_NOEXEC,
        "noatime" => MountAttrFlags::MOUNT_ATTR_NOATIME,
        "strictatime" => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        "nodiratime" => MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        // What is so without being asked for, or means nothing for memory.
        "defaults" | "rw" | "suid" | "dev" | "exec" | "atime" | "diratime" | "relatime"
        | "norelatime" | "nostrictatime" | "sync" | "async" | "dirsync" => MountAttrFlags::empty(),
        _ => return None,
    })
}

#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_attributes(tree: BorrowedFd<'_>, wanted: &Attributes<'_>, depth: Depth) -> io::Result<()> {
    let mut set = 0;
    for (is_wanted, flag) in [
        (wanted.read_only, libc::MOUNT_ATTR_RDONLY),
        (wanted.no_suid, libc::MOUNT_ATTR_NOSUID),
        (wanted.no_dev, libc::MOUNT_ATTR_NODEV),
        (wanted.no_exec, libc::MOUNT_ATTR_NOEXEC),
        (wanted.owners.is_some(), libc::MOUNT_ATTR_IDMAP),
    ] {
        if is_wanted {
            set |= flag;
        }
    }
    let namespace = wanted.owners.map_or(0, |namespace| namespace.as_raw_fd());
    let propagation = match (wanted.is_shared, wanted.is_slave) {
        (true, _) => 0,
        (false, true) => libc::MS_SLAVE,
        (false, false) => libc::MS_PRIVATE,
    };
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation,
        userns_fd: namespace.try_into().expect("descriptors are not negative"),
    };
    let mut flags = AtFlags::EMPTY_PATH.bits();
    if depth == Depth::Recursive {
        flags |= libc::AT_RECURSIVE.cast_unsigned();
    }
    // SAFETY: the path is a string with its end, the attributes live through the call, and their
    // size is given; the kernel only reads both. Neither descriptor is closed meanwhile.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether it is the file system or the kernel that cannot map owners.
pub fn cannot_map_owners(error: &PathError) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| error.source.raw_os_error() == Some(errno.raw_os_error()))
}
