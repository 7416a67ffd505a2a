//! Mounts and unmounts overlays and tmpfs on trusted paths, and creates mount namespaces. The
//! engine calls it for root file systems; [`detached`](super::detached) creates the mounts that a
//! container's specification requests.

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::{PathContext, PathError};
use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount, mount_change, move_mount, open_tree, unmount as unmount_once,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tracing::debug;

use super::thread;

/// An overlay to mount.
#[derive(Clone, Copy, Debug)]
pub struct OverlayMount<'a> {
    /// The layers, bottom to top.
    pub lowers: &'a [PathBuf],
    /// The writable layer; without it the overlay is read-only.
    pub upper: Option<UpperLayer<'a>>,
    pub attributes: OverlayAttributes,
}

/// The extended attributes in which overlays store opaque directories and other marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlayAttributes {
    /// `trusted.overlay.*`, which only root of the host can set and see.
    #[default]
    Trusted,
    /// `user.overlay.*` (`userxattr`), for user namespaces. Without the option, an overlay in a user namespace uses no
    /// attributes, and cannot replace or remove directories of lower layers (`EIO`).
    User,
}

impl OverlayAttributes {
    /// Returns the attribute that with the value `y` makes a directory opaque, so that it hides its content in
    /// lower layers.
    pub fn opaque_name(self) -> &'static CStr {
        match self {
            OverlayAttributes::Trusted => c"trusted.overlay.opaque",
            OverlayAttributes::User => c"user.overlay.opaque",
        }
    }
}

/// The writable layer of an overlay.
#[derive(Clone, Copy, Debug)]
pub struct UpperLayer<'a> {
    /// Directory of the changes (`upperdir`).
    pub dir: &'a Path,
    /// Empty directory on the same file system (`workdir`).
    pub work: &'a Path,
}

/// Options of every overlay, regardless of the kernel's defaults.
///
/// Layers are untrusted: redirects in their extended attributes are not followed. With `index`, layers could not be
/// mounted twice.
const STRINGS: [(&str, &str); 3] =
    [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")];

/// Mount option that skips syncs of a container's files to disk: the container does not survive a
/// power failure anyway.
const VOLATILE: &str = "volatile";

/// Mount option that makes an overlay use `user.overlay.*` attributes (Linux 5.11).
const USER_ATTRIBUTES: &str = "userxattr";

/// Maximum length of a value for `fsconfig`, in bytes.
const MAX_VALUE: usize = 255;
/// Maximum length of the options for `mount`, in bytes: one page without the final NUL.
const MAX_OPTIONS: usize = 4095;

impl OverlayMount<'_> {
    /// Mounts the overlay with `nodev`, but without `ro`, which containers could not clear.
    ///
    /// Since Linux 6.5 layers are added one by one, up to 500 of them; before that, all paths must fit into
    /// one page of options, which is enough for about 220 short names.
    pub fn mount(&self, target: &Path) -> Result<(), PathError> {
        debug!(on = %target.display(), layers = self.lowers.len(), "mount an overlay");
        match self.create_by_layers() {
            Ok(mount) => attach(mount.as_fd(), target),
            // An older kernel does not know `lowerdir+`, and reports that only when the mount is created.
            Err(Errno::INVAL | Errno::NOSYS) => self.mount_by_options(target),
            Err(error) => Err(error),
        }
        .with_path("mount an overlay on", target)
    }

    /// Creates the overlay as a detached mount, for [`attach_overlay`].
    ///
    /// Before Linux 6.5, this also mounts the overlay on the target, in the calling thread's mount
    /// namespace.
    pub fn make(&self, target: &Path) -> Result<OwnedFd, PathError> {
        debug!(path = %target.display(), layers = self.lowers.len(), "make an overlay");
        let made = match self.create_by_layers() {
            Err(Errno::INVAL | Errno::NOSYS) => self.mount_by_options(target).and_then(|()| {
                let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                open_tree(CWD, target, clone)
            }),
            made => made,
        };
        made.with_path("mount an overlay on", target)
    }

    fn create_by_layers(&self) -> Result<OwnedFd, Errno> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let mut opened = Vec::new();
        for lower in self.lowers.iter().rev() {
            let name = short_name(lower, MAX_VALUE, &mut opened)?;
            fsconfig_set_string(context.as_fd(), "lowerdir+", &*name)?;
        }
        if let Some(UpperLayer { dir, work }) = self.upper {
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
            text.extend(escape_path(&short_name(lower, max, opened)?));
        }
        if let Some(UpperLayer { dir, work }) = self.upper {
            for (key, path) in [("upperdir", dir), ("workdir", work)] {
                text.extend_from_slice(format!(",{key}=").as_bytes());
                text.extend(escape_path(&short_name(path, max, opened)?));
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

/// Returns the path or, if it is longer than `max`, the path of an open descriptor in `/proc/self/fd`.
fn short_name(path: &Path, max: usize, opened: &mut Vec<OwnedFd>) -> Result<PathBuf, Errno> {
    if path.as_os_str().len() <= max {
        return Ok(path.to_owned());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty())?;
    let name = PathBuf::from(descriptor_path(&directory));
    opened.push(directory);
    Ok(name)
}

/// Escapes the separators of paths and options with a backslash.
fn escape_path(path: &Path) -> impl Iterator<Item = u8> {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.flat_map(|&byte| [b"\\:,".contains(&byte).then_some(b'\\'), Some(byte)]).flatten()
}

/// Mounts an overlay that [`OverlayMount::make`] created.
pub fn attach_overlay(overlay: BorrowedFd<'_>, target: &Path) -> Result<(), PathError> {
    debug!(on = %target.display(), "mount an overlay");
    attach(overlay, target).with_path("mount an overlay on", target)
}

fn attach(mount: BorrowedFd<'_>, target: &Path) -> Result<(), Errno> {
    move_mount(mount, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Mounts a tmpfs with this mode on a directory.
pub fn mount_tmpfs(target: &Path, mode: u32, size_bytes: Option<u64>) -> Result<(), PathError> {
    let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
    let options = CString::new(format!("mode={mode:o}{size}")).expect("there is no NUL in it");
    debug!(on = %target.display(), size_bytes, "mount a tmpfs");
    mount(c"tmpfs", target, c"tmpfs", MountFlags::NOSUID, Some(options.as_c_str()))
        .with_path("mount on", target)
}

/// Detaches all mounts on a path, if any (`MNT_DETACH`): processes that still use a mount keep it. A symbolic
/// link is not followed.
pub fn unmount(target: &Path) -> Result<(), PathError> {
    loop {
        match unmount_once(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => debug!(on = %target.display(), "unmount"),
            // The path is no mount point, or does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(PathError::new("unmount", target, error)),
        }
    }
}

/// Unmounts everything below a directory that no other user can write to, the latest mount first.
pub fn unmount_below(dir: &Path) -> Result<(), PathError> {
    let dir = match fs::canonicalize(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        resolved => resolved.with_path("resolve", dir)?,
    };
    let table = Path::new("/proc/self/mountinfo");
    let mounts = fs::read(table).with_path("read", table)?;
    for line in mounts.split(|&byte| byte == b'\n').rev() {
        let Some(target) = line.split(|&byte| byte == b' ').nth(4) else { continue };
        let target = PathBuf::from(OsString::from_vec(unescaped(target)));
        if target != dir && target.starts_with(&dir) {
            unmount(&target)?;
        }
    }
    Ok(())
}

/// Unescapes a path of `mountinfo`, in which octal numbers stand for white space and backslashes.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| byte == b'\\');
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

/// A copy of this process's mount namespace with additional mounts.
///
/// Later mounts on the host propagate into the namespace (`rslave`), but not back. The namespace and its own mounts
/// disappear with its last process or descriptor.
#[derive(Debug)]
pub struct MountNamespace(OwnedFd);

impl MountNamespace {
    /// Creates a mount namespace, and calls `work` in it to mount file systems.
    pub fn new<E: From<PathError> + Send>(
        work: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Self, E> {
        thread::run(|| {
            enter_new().with_path("create a mount namespace with the mounts of", Path::new("/"))?;
            work()?;
            let path = Path::new("/proc/thread-self/ns/mnt");
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(MountNamespace(openat(CWD, path, flags, Mode::empty()).with_path("open", path)?))
        })
    }

    /// Makes a command run in the namespace.
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

    /// Duplicates the descriptor of the namespace, for another process to enter.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl From<OwnedFd> for MountNamespace {
    fn from(namespace: OwnedFd) -> Self {
        MountNamespace(namespace)
    }
}

/// Calls `work` in a new mount namespace, and returns its result. Its mounts disappear afterwards, except detached
/// mounts that it returns.
pub fn run_in_new_namespace<T: Send, E: From<PathError> + Send>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::run(|| {
        enter_new().with_path("create a mount namespace with the mounts of", Path::new("/"))?;
        work()
    })
}

/// Moves the calling thread to a new mount namespace.
fn enter_new() -> io::Result<()> {
    debug!("make a mount namespace");
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: unsharing the mounts also unshares the root and working directory of this thread, which
    // ends after its work.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNS)?;
    }
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change(c"/", flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(lowers: &[PathBuf]) -> OverlayMount<'_> {
        OverlayMount { lowers, upper: None, attributes: OverlayAttributes::Trusted }
    }

    #[test]
    fn everything_below_a_directory_is_unmounted() {
        if !rustix::process::geteuid().is_root() {
            // Only root can mount.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("with space/runc.AbCdEf");
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        rustix::mount::mount_bind("/bin/sh", &file).unwrap();
        assert!(fs::remove_file(&file).is_err());
        unmount_below(dir.path()).unwrap();
        fs::remove_file(&file).unwrap();
        unmount_below(&dir.path().join("none")).unwrap();
        assert_eq!(unescaped(b"a\\040b\\134"), b"a b\\");
    }

    #[test]
    fn options_list_the_top_layer_first_and_escape_separators() {
        let lowers = ["/a:b", "/c,d", "/e\\"].map(PathBuf::from);
        let options = overlay(&lowers).options(usize::MAX, &mut Vec::new()).unwrap();
        assert_eq!(
            String::from_utf8(options).unwrap(),
            "lowerdir=/e\\\\:/c\\,d:/a\\:b,index=off,metacopy=off,redirect_dir=nofollow"
        );
    }

    #[test]
    fn user_overlay_reports_its_attributes() {
        let lowers = [PathBuf::from("/a")];
        let overlay = OverlayMount { attributes: OverlayAttributes::User, ..overlay(&lowers) };
        let options = overlay.options(usize::MAX, &mut Vec::new()).unwrap();
        let options = String::from_utf8(options).unwrap();
        assert!(options.starts_with("lowerdir=/a,userxattr,"), "{options}");
    }

    #[test]
    fn long_layer_lists_fit_into_one_page_of_options() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("a directory with quite a long name");
        fs::create_dir(&layer).unwrap();
        let lowers = vec![layer; 200];
        let mut opened = Vec::new();
        assert!(overlay(&lowers).options(usize::MAX, &mut opened).unwrap().len() > MAX_OPTIONS);
        assert!(overlay(&lowers).options(0, &mut opened).unwrap().len() < MAX_OPTIONS);
    }
}
