//! Mounts: overlays, memory, and taking them away; and the namespaces whose processes see them.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount, mount_change, move_mount, open_tree, unmount as unmount_once,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tracing::debug;

use super::fs::{PathContext, PathError};
use super::thread;

/// An overlay to mount.
#[derive(Clone, Copy, Debug)]
pub struct Overlay<'a> {
    /// The layers, bottom to top.
    pub lowers: &'a [PathBuf],
    /// What takes the changes; without it the overlay is read-only.
    pub upper: Option<Upper<'a>>,
    /// Which attributes of the layers mean something to it.
    pub attributes: OverlayAttributes,
}

/// The extended attributes in which overlays keep what a layer says of those below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlayAttributes {
    /// `trusted.overlay.*`, which root of the host alone can set and see.
    #[default]
    Trusted,
    /// `user.overlay.*`: all there is in a user namespace, where an overlay looks at neither without
    /// being told so, and then cannot replace or remove directories of lower layers (`EIO`).
    User,
}

impl OverlayAttributes {
    /// Returns the attribute of a directory that hides what lower layers have of it, if its value is `y`.
    pub fn opaque(self) -> &'static CStr {
        match self {
            OverlayAttributes::Trusted => c"trusted.overlay.opaque",
            OverlayAttributes::User => c"user.overlay.opaque",
        }
    }
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

/// Has an overlay use `user.overlay.*` (Linux 5.11).
const USER_ATTRIBUTES: &str = "userxattr";

/// The longest value the kernel takes in one piece, and the longest string of options.
const MAX_VALUE: usize = 255;
const MAX_OPTIONS: usize = 4095;

impl Overlay<'_> {
    /// Mounts it, without `ro` and without anything that containers could not undo.
    ///
    /// Since Linux 6.5 layers are added one by one, up to 500 of them; before that, all must fit into
    /// one page of options, which with short names about 220 do.
    pub fn mount(&self, target: &Path) -> Result<(), PathError> {
        debug!(on = %target.display(), layers = self.lowers.len(), "mount an overlay");
        match self.by_layers() {
            Ok(mount) => attach(mount.as_fd(), target),
            // An older kernel does not know the option, and says so when all are given.
            Err(Errno::INVAL | Errno::NOSYS) => self.mount_by_options(target),
            Err(error) => Err(error),
        }
        .at("mount an overlay on", target)
    }

    /// Makes it without mounting it anywhere, for [`attach_overlay`].
    ///
    /// An older kernel has to mount it: on the target, in the calling thread's mount namespace.
    pub fn make(&self, target: &Path) -> Result<OwnedFd, PathError> {
        debug!(path = %target.display(), layers = self.lowers.len(), "make an overlay");
        let made = match self.by_layers() {
            Err(Errno::INVAL | Errno::NOSYS) => self.mount_by_options(target).and_then(|()| {
                let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                open_tree(CWD, target, clone)
            }),
            made => made,
        };
        made.at("mount an overlay on", target)
    }

    fn by_layers(&self) -> Result<OwnedFd, Errno> {
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
        if self.attributes == OverlayAttributes::User {
            fsconfig_set_flag(context.as_fd(), USER_ATTRIBUTES)?;
        }
        for (key, value) in STRINGS {
            fsconfig_set_string(context.as_fd(), key, value)?;
        }
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
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
        if self.attributes == OverlayAttributes::User {
            text.extend_from_slice(format!(",{USER_ATTRIBUTES}").as_bytes());
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

/// Mounts an overlay that was made before.
pub fn attach_overlay(overlay: BorrowedFd<'_>, target: &Path) -> Result<(), PathError> {
    debug!(on = %target.display(), "mount an overlay");
    attach(overlay, target).at("mount an overlay on", target)
}

fn attach(mount: BorrowedFd<'_>, target: &Path) -> Result<(), Errno> {
    move_mount(mount, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Mounts memory on a directory, with this mode: what is in it is gone when it is unmounted.
pub fn memory(target: &Path, mode: u32, size_bytes: Option<u64>) -> Result<(), PathError> {
    let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
    let options = CString::new(format!("mode={mode:o}{size}")).expect("there is no NUL in it");
    debug!(on = %target.display(), size_bytes, "mount a tmpfs");
    mount(c"tmpfs", target, c"tmpfs", MountFlags::NOSUID, Some(options.as_c_str()))
        .at("mount on", target)
}

/// Takes away all that is mounted on a path, if anything is, at once and for good: who still uses it
/// keeps it. A symbolic link is not followed.
pub fn unmount(target: &Path) -> Result<(), PathError> {
    loop {
        match unmount_once(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => debug!(on = %target.display(), "unmount"),
            // Nothing is mounted there, or nothing is there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(PathError::new("unmount", target, error)),
        }
    }
}

/// A copy of this process's mount namespace with more in it.
///
/// What is mounted on the host later appears in it (`rslave`), and nothing of it on the host. It goes
/// with the last process or descriptor, and all that is mounted in it alone goes too.
#[derive(Debug)]
pub struct MountNamespace(OwnedFd);

impl MountNamespace {
    /// Makes one, in which `work` mounts things.
    pub fn new<E: From<PathError> + Send>(
        work: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Self, E> {
        thread::run(|| {
            enter_new().at("make a mount namespace of", Path::new("/"))?;
            work()?;
            let path = Path::new("/proc/thread-self/ns/mnt");
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(MountNamespace(openat(CWD, path, flags, Mode::empty()).at("open", path)?))
        })
    }

    /// Has a command run in it.
    pub fn enter(&self, command: &mut Command) -> io::Result<()> {
        let namespace = self.0.try_clone()?;
        #[expect(unsafe_code, reason = "there is no other way to do this for a child")]
        // SAFETY: between fork and exec only a system call is made; it allocates nothing and takes
        // no lock. The descriptor is open as long as the command, which owns it.
        unsafe {
            command.pre_exec(move || {
                let mounts = Some(LinkNameSpaceType::Mount);
                Ok(move_into_link_name_space(namespace.as_fd(), mounts)?)
            });
        }
        Ok(())
    }

    /// Returns a further descriptor of it, for another process to enter.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl From<OwnedFd> for MountNamespace {
    fn from(namespace: OwnedFd) -> Self {
        MountNamespace(namespace)
    }
}

/// Returns what `work` returns, which runs in a mount namespace of its own: what it mounts is gone
/// afterwards, but for what it returns.
pub fn within_new<T: Send, E: From<PathError> + Send>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::run(|| {
        enter_new().at("make a mount namespace of", Path::new("/"))?;
        work()
    })
}

/// Parts the calling thread from the mounts of the process.
fn enter_new() -> io::Result<()> {
    debug!("make a mount namespace");
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: of what threads share, the root and working directory are parted from with the mounts;
    // this thread ends with what it came for.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNS)?;
    }
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change(c"/", flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(lowers: &[PathBuf]) -> Overlay<'_> {
        Overlay { lowers, upper: None, attributes: OverlayAttributes::Trusted }
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
    fn an_overlay_of_a_user_says_which_attributes_it_uses() {
        let lowers = [PathBuf::from("/a")];
        let overlay = Overlay { attributes: OverlayAttributes::User, ..overlay(&lowers) };
        let options = overlay.options(usize::MAX, &mut Vec::new()).unwrap();
        let options = String::from_utf8(options).unwrap();
        assert!(options.starts_with("lowerdir=/a,userxattr,"), "{options}");
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
