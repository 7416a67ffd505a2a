//! Mounts: overlays, idmapped binds, and taking them away.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount,
    move_mount, open_tree, unmount as unmount_once,
};

use super::fs::{PathContext, PathError};

/// An overlay to mount.
#[derive(Clone, Copy, Debug)]
pub struct Overlay<'a> {
    /// The layers, bottom to top.
    pub lowers: &'a [PathBuf],
    /// What takes the changes; without it the overlay is read-only.
    pub upper: Option<Upper<'a>>,
}

/// What takes the changes made to an overlay.
#[derive(Clone, Copy, Debug)]
pub struct Upper<'a> {
    /// The directory the changes are in.
    pub dir: &'a Path,
    /// An empty directory on the same file system.
    pub work: &'a Path,
}

/// Options of every overlay, whatever the kernel's configuration says.
///
/// Layers come from strangers: what they say in extended attributes about where else to look is not
/// followed. `index` would refuse to mount layers twice.
const STRINGS: [(&str, &str); 3] =
    [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")];

/// Nobody waits for a container's files to reach the disk: after a power cut there is no container.
const VOLATILE: &str = "volatile";

/// The longest value the kernel takes in one piece, and the longest string of options.
const MAX_VALUE: usize = 255;
const MAX_OPTIONS: usize = 4095;

impl Overlay<'_> {
    /// Mounts it, without `ro` and without anything that containers could not undo.
    ///
    /// Since Linux 6.5 layers are added one by one, up to 500 of them; before that, all must fit into
    /// one page of options, which with short names about 220 do.
    pub fn mount(&self, target: &Path) -> Result<(), PathError> {
        match self.mount_by_layers(target) {
            // An older kernel does not know the option, and says so when all are given.
            Err(Errno::INVAL | Errno::NOSYS) => self.mount_by_options(target),
            done => done,
        }
        .at("mount an overlay on", target)
    }

    fn mount_by_layers(&self, target: &Path) -> Result<(), Errno> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let mut opened = Vec::new();
        for lower in self.lowers.iter().rev() {
            let name = short_name(lower, MAX_VALUE, &mut opened)?;
            fsconfig_set_string(context.as_fd(), "lowerdir+", &*name)?;
        }
        if let Some(Upper { dir, work }) = self.upper {
            for (key, path) in [("upperdir", dir), ("workdir", work)] {
                let name = short_name(path, MAX_VALUE, &mut opened)?;
                fsconfig_set_string(context.as_fd(), key, &*name)?;
            }
            fsconfig_set_flag(context.as_fd(), VOLATILE)?;
        }
        for (key, value) in STRINGS {
            fsconfig_set_string(context.as_fd(), key, value)?;
        }
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        attach(mount.as_fd(), target)
    }

    fn mount_by_options(&self, target: &Path) -> Result<(), Errno> {
        let mut opened = Vec::new();
        let mut options = self.options(usize::MAX, &mut opened)?;
        if options.len() > MAX_OPTIONS {
            options = self.options(0, &mut opened)?;
        }
        if options.len() > MAX_OPTIONS {
            return Err(Errno::TOOBIG);
        }
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        mount("overlay", target, "overlay", MountFlags::NODEV, options.as_c_str())
    }

    /// Returns all options as one string, with short names for paths longer than `max`.
    fn options(&self, max: usize, opened: &mut Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        for (at, lower) in self.lowers.iter().rev().enumerate() {
            text.extend_from_slice(if at == 0 { b"lowerdir=" } else { b":" });
            text.extend(escaped(&short_name(lower, max, opened)?));
        }
        if let Some(Upper { dir, work }) = self.upper {
            for (key, path) in [("upperdir", dir), ("workdir", work)] {
                text.extend_from_slice(format!(",{key}=").as_bytes());
                text.extend(escaped(&short_name(path, max, opened)?));
            }
            text.extend_from_slice(format!(",{VOLATILE}").as_bytes());
        }
        for (key, value) in STRINGS {
            text.extend_from_slice(format!(",{key}={value}").as_bytes());
        }
        Ok(text)
    }
}

/// Returns the path, or if it is longer than `max` a name of a descriptor of it.
fn short_name(path: &Path, max: usize, opened: &mut Vec<OwnedFd>) -> Result<PathBuf, Errno> {
    if path.as_os_str().len() <= max {
        return Ok(path.to_owned());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty())?;
    let name = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    opened.push(directory);
    Ok(name)
}

/// Puts a backslash before what separates paths and options.
fn escaped(path: &Path) -> impl Iterator<Item = u8> {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.flat_map(|&byte| [b"\\:,".contains(&byte).then_some(b'\\'), Some(byte)]).flatten()
}

fn attach(mount: BorrowedFd<'_>, target: &Path) -> Result<(), Errno> {
    move_mount(mount, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Mounts a file or directory at another place with its owners mapped.
///
/// The namespace is that of a [`Mapping`](super::userns::Mapping). Not every file system can:
/// the error is then `EINVAL`.
pub fn idmapped_bind(
    source: &Path,
    target: &Path,
    namespace: BorrowedFd<'_>,
    depth: Depth,
) -> Result<(), PathError> {
    let file = open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at("open", source)?;
    bind_open((file.as_fd(), source), target, Some(namespace), depth)
}

/// Mounts what is open, which is there by this name for messages, at another place; with its owners
/// mapped if a namespace says how.
///
/// What somebody else puts in the place of the file after it was opened is not mounted.
pub fn bind_open(
    (file, name): (BorrowedFd<'_>, &Path),
    target: &Path,
    namespace: Option<BorrowedFd<'_>>,
    depth: Depth,
) -> Result<(), PathError> {
    let tree = copied((file, name), namespace, depth)?;
    attach(tree.as_fd(), target).at("mount on", target)
}

/// Returns a mount of a file or directory that is nowhere yet; with its owners mapped if a namespace
/// says how.
pub(super) fn detached(
    source: &Path,
    namespace: Option<BorrowedFd<'_>>,
    depth: Depth,
) -> Result<OwnedFd, PathError> {
    let file = open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at("open", source)?;
    copied((file.as_fd(), source), namespace, depth)
}

fn copied(
    (file, name): (BorrowedFd<'_>, &Path),
    namespace: Option<BorrowedFd<'_>>,
    depth: Depth,
) -> Result<OwnedFd, PathError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if depth == Depth::Recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = open_tree(file, c"", flags).at("open", name)?;
    if let Some(namespace) = namespace {
        set_mapping(tree.as_fd(), namespace, depth).at("map the owners of files in", name)?;
    }
    Ok(tree)
}

/// Mounts memory on a directory: what is in it is gone when it is unmounted.
pub fn memory(target: &Path, size_bytes: Option<u64>) -> Result<(), PathError> {
    let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
    let options = CString::new(format!("mode=0777{size}")).expect("there is no NUL in it");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(c"tmpfs", target, c"tmpfs", flags, Some(options.as_c_str())).at("mount on", target)
}

/// Whether what is mounted below a directory is meant too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only its own file system.
    Single,
    /// That, and all below it.
    Recursive,
}

#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_mapping(tree: BorrowedFd<'_>, namespace: BorrowedFd<'_>, depth: Depth) -> io::Result<()> {
    let namespace = namespace.as_raw_fd().try_into();
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.expect("descriptors are not negative"),
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

/// Takes away all that is mounted on a path, if anything is, at once and for good: who still uses it
/// keeps it. A symbolic link is not followed.
pub fn unmount(target: &Path) -> Result<(), PathError> {
    loop {
        match unmount_once(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(PathError::new("unmount", target, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(lowers: &[PathBuf]) -> Overlay<'_> {
        Overlay { lowers, upper: None }
    }

    #[test]
    fn options_name_the_top_layer_first_and_escape_separators() {
        let lowers = ["/a:b", "/c,d", "/e\\"].map(PathBuf::from);
        let options = overlay(&lowers).options(usize::MAX, &mut Vec::new()).unwrap();
        assert_eq!(
            String::from_utf8(options).unwrap(),
            "lowerdir=/e\\\\:/c\\,d:/a\\:b,index=off,metacopy=off,redirect_dir=nofollow"
        );
    }

    #[test]
    fn long_chains_fit_into_one_page_of_options() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("a directory with quite a long name");
        std::fs::create_dir(&layer).unwrap();
        let lowers = vec![layer; 200];
        let mut opened = Vec::new();
        assert!(overlay(&lowers).options(usize::MAX, &mut opened).unwrap().len() > MAX_OPTIONS);
        assert!(overlay(&lowers).options(0, &mut opened).unwrap().len() < MAX_OPTIONS);
    }
}
