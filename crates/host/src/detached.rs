//! Creates detached mounts (`open_tree`, `fsmount`): copies of mounts, and tmpfs, that are not
//! attached to a path yet. The engine uses them for all mounts that a container's specification
//! requests.
//!
//! Detached mounts are created from open files and attached to open files, so no path is looked up
//! twice.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::retry;
use oci_hooks_files::fs::{PathContext as _, PathError};
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

use super::host_file::HostFile;

/// Treatment of the mounts below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountDepth {
    /// The directory's own mount only; in a user namespace also locked mounts below it, which the
    /// kernel does not let a process separate there.
    Single,
    /// The directory's mount and all mounts below it.
    Recursive,
}

/// Attributes of a mount: restrictions, id mapping and propagation.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountAttributes<'a> {
    pub read_only: bool,
    /// Set-user-ID bits and file capabilities have no effect.
    pub no_suid: bool,
    pub no_dev: bool,
    /// The user namespace of a [`NamespaceMapping`](super::userns::NamespaceMapping) for an idmapped mount.
    pub owners: Option<BorrowedFd<'a>>,
    /// If set, later mounts below the mount that was copied propagate to this mount (`rslave`);
    /// otherwise mounts propagate in neither direction (`rprivate`).
    pub is_slave: bool,
    /// If set, this mount stays a peer of the mount that was copied (`rshared`).
    pub is_shared: bool,
}

/// A detached mount, which can be attached to a path.
#[derive(Debug)]
pub struct DetachedMount {
    tree: OwnedFd,
    /// Path of the file or directory whose mount was copied, or `tmpfs`; for messages.
    name: PathBuf,
    is_dir: bool,
    depth: MountDepth,
}

impl DetachedMount {
    /// Copies the mount of an open file or directory.
    pub fn copy_of(file: &HostFile, depth: MountDepth) -> Result<Self, PathError> {
        let name = PathBuf::from(file.display().to_string());
        Self::copy(file.as_fd(), name, file.is_dir(), depth)
    }

    fn copy(
        file: BorrowedFd<'_>,
        name: PathBuf,
        is_dir: bool,
        depth: MountDepth,
    ) -> Result<Self, PathError> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let all = || open_tree(file, c"", flags | OpenTreeFlags::AT_RECURSIVE);
        debug!(path = %name.display(), ?depth, "copy a mount");
        let copied = match depth {
            MountDepth::Recursive => all().map(|tree| (tree, depth)),
            MountDepth::Single => match open_tree(file, c"", flags) {
                // In a user namespace, mounts inherited from its parent are locked: they can only be
                // copied together with the mount above them.
                Err(Errno::INVAL) => all().map(|tree| (tree, MountDepth::Recursive)),
                copied => copied.map(|tree| (tree, depth)),
            },
        };
        let (tree, depth) = copied.with_path("copy the mount of", &name)?;
        Ok(DetachedMount { tree, name, is_dir, depth })
    }

    /// Creates a tmpfs with options such as `size=64m`, `mode=700` or `noexec`.
    pub fn new_tmpfs(options: &[String]) -> Result<Self, PathError> {
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
        Ok(DetachedMount {
            tree: made.with_path("create a file system of type", &name)?,
            name,
            is_dir: true,
            depth: MountDepth::Single,
        })
    }

    /// Returns whether the mount's root is a directory; otherwise it has to be mounted on a file.
    pub fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// Sets attributes of the mount, and of the mounts below it if they were copied too.
    ///
    /// # Errors
    ///
    /// [`cannot_map_owners`] recognizes the errors of file systems and kernels without idmapped mounts.
    pub fn set(&self, attributes: &MountAttributes<'_>) -> Result<(), PathError> {
        debug!(path = %self.name.display(), ?attributes, "set the attributes of a mount");
        set_attributes(self.tree.as_fd(), attributes, self.depth)
            .with_path("set the attributes of the mount of", &self.name)
    }

    /// Attaches the mount to a trusted path.
    pub fn attach(&self, target: &Path) -> Result<(), PathError> {
        debug!(source = %self.name.display(), on = %target.display(), "mount");
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(self.tree.as_fd(), c"", CWD, target, empty)
            .map_err(|error| self.attach_error(target, error))
    }

    /// Attaches the mount to a path beneath another mount; the path may contain no symbolic link.
    ///
    /// # Errors
    ///
    /// The source is `ELOOP` if the path contains a symbolic link.
    pub fn attach_beneath(&self, above: &DetachedMount, relative: &Path) -> Result<(), PathError> {
        let above_name = above.name.display();
        debug!(source = %self.name.display(), beneath = %above_name, on = %relative.display(), "mount");
        let failed = |error| self.attach_error(&above.name.join(relative), error);
        let target = above.open(relative).map_err(failed)?;
        let empty =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(self.tree.as_fd(), c"", target.as_fd(), c"", empty).map_err(failed)
    }

    fn attach_error(&self, target: &Path, error: Errno) -> PathError {
        let names = format!("{} on {}", self.name.display(), target.display());
        PathError::new("mount", Path::new(&names), error)
    }

    /// Creates a mount point at a path beneath this mount, and its missing parent directories, with the calling
    /// thread's permissions, and changes their owner. Existing files and directories stay as they are.
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
                set_owner(&directory, owner)?;
            }
        }
        let made = if is_dir {
            mkdirat(&directory, name, Mode::from_raw_mode(0o755))
        } else {
            mknodat(&directory, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
        };
        match made {
            Ok(()) => set_owner(&self.open(relative)?, owner),
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a path beneath the mount; the path may contain no symbolic link.
    fn open(&self, relative: &Path) -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        retry(|| openat2(self.tree.as_fd(), relative, flags, Mode::empty(), resolve))
    }
}

impl AsFd for DetachedMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }
}

/// Changes the owner of an open file, if an owner is given.
fn set_owner(file: &OwnedFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)?)
}

/// Returns the mount attribute that an option of a tmpfs sets, such as `nosuid`; empty if the
/// option has no effect. `None` means that the option is for the file system itself.
fn memory_attribute(option: &str) -> Option<MountAttrFlags> {
    Some(match option {
        "ro" => MountAttrFlags::MOUNT_ATTR_RDONLY,
        "nosuid" => MountAttrFlags::MOUNT_ATTR_NOSUID,
        "nodev" => MountAttrFlags::MOUNT_ATTR_NODEV,
        "noexec" => MountAttrFlags::MOUNT_ATTR_NOEXEC,
        "noatime" => MountAttrFlags::MOUNT_ATTR_NOATIME,
        "strictatime" => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        "nodiratime" => MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        // Defaults, or options without effect on tmpfs.
        "defaults" | "rw" | "suid" | "dev" | "exec" | "atime" | "diratime" | "relatime"
        | "norelatime" | "nostrictatime" | "sync" | "async" | "dirsync" => MountAttrFlags::empty(),
        _ => return None,
    })
}

#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_attributes(
    tree: BorrowedFd<'_>,
    wanted: &MountAttributes<'_>,
    depth: MountDepth,
) -> io::Result<()> {
    let mut set = 0;
    for (is_wanted, flag) in [
        (wanted.read_only, libc::MOUNT_ATTR_RDONLY),
        (wanted.no_suid, libc::MOUNT_ATTR_NOSUID),
        (wanted.no_dev, libc::MOUNT_ATTR_NODEV),
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
    if depth == MountDepth::Recursive {
        flags |= libc::AT_RECURSIVE.cast_unsigned();
    }
    // SAFETY: the path is NUL-terminated, the attributes live through the call, and their
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

/// Returns whether an error means that the file system or the kernel does not support idmapped mounts.
pub fn cannot_map_owners(error: &PathError) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| error.source.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn errors_of_attaching_name_the_mount_and_its_target() {
        let mount = |name: &str| DetachedMount {
            tree: File::open("/").unwrap().into(),
            name: name.into(),
            is_dir: true,
            depth: MountDepth::Single,
        };
        let (tmpfs, work) = (mount("tmpfs"), mount("/work"));
        let error = tmpfs.attach(Path::new("/nonexistent/a")).unwrap_err();
        assert_eq!(error.to_string(), "cannot mount tmpfs on /nonexistent/a");
        let error = tmpfs.attach_beneath(&work, Path::new("nonexistent/a")).unwrap_err();
        assert_eq!(error.to_string(), "cannot mount tmpfs on /work/nonexistent/a");
    }
}
