//! Mounts tmpfs on trusted paths, unmounts, and creates mount namespaces; [`detached`](super::detached) creates the
//! mounts that a container's specification requests.

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount as unmount_once,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tracing::debug;

use super::thread;

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

/// Mounts a tmpfs with this mode on a directory.
pub fn mount_tmpfs(target: &Path, mode: u32, size_bytes: Option<u64>) -> Result<(), PathError> {
    let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
    let options = CString::new(format!("mode={mode:o}{size}")).expect("there is no NUL in it");
    debug!(on = %target.display(), size_bytes, "mount a tmpfs");
    mount(c"tmpfs", target, c"tmpfs", MountFlags::NOSUID, Some(options.as_c_str()))
        .with_path("mount a tmpfs on", target)
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
        run_in_new_namespace(|| {
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
}
