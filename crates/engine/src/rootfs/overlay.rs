//! Overlays of the layers of an image.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::mount::OverlayAttributes;
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount,
    open_tree,
};
use tracing::debug;

/// An overlay to mount.
#[derive(Clone, Copy, Debug)]
pub struct OverlayMount<'a> {
    /// The layers, bottom to top.
    pub lowers: &'a [PathBuf],
    /// The writable layer; without it the overlay is read-only.
    pub upper: Option<UpperLayer<'a>>,
    pub attributes: OverlayAttributes,
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn overlay(lowers: &[PathBuf]) -> OverlayMount<'_> {
        OverlayMount { lowers, upper: None, attributes: OverlayAttributes::Trusted }
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
