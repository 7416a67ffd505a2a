//! Creates, enters and removes network namespaces that live on without a process: they are pinned by a bind mount on a
//! file, as user namespaces can be too. It configures no interfaces: the engine does, for the network of each job.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::mount_bind;
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
    move_into_thread_name_spaces, unshare_unsafe,
};
use tracing::debug;

use super::identity::ProcessIdentity;
use super::mount::unmount;
use super::removal::remove_tree;
use super::{thread, userns};

/// Creates a network namespace, pins it on a new file, calls `work` inside, and returns its result. The namespace
/// belongs to the given user namespace, by default to that of this process.
pub fn create<T: Send>(
    pin: &Path,
    owner: Option<BorrowedFd<'_>>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, PathError> {
    if let Some(owner) = owner {
        let namespace =
            userns::network_namespace(owner).with_path("make a network namespace for", pin)?;
        self::pin(namespace.as_fd(), pin)?;
        return run_in_namespace(pin, work);
    }
    thread::run(|| {
        enter_new().with_path("make a network namespace for", pin)?;
        // Only this thread has entered the namespace.
        self::pin(open_current()?.as_fd(), pin)?;
        Ok(work())
    })
}

/// Pins a namespace of any type on a new file.
pub fn pin(namespace: BorrowedFd<'_>, pin: &Path) -> Result<(), PathError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(pin)
        .with_path("create", pin)?;
    debug!(on = %pin.display(), "mount a namespace");
    mount_bind(descriptor_path(namespace), pin).with_path("mount a namespace on", pin)
}

/// Calls `work` inside a pinned network namespace, and returns its result.
pub fn run_in_namespace<T: Send>(
    pin: &Path,
    work: impl FnOnce() -> T + Send,
) -> Result<T, PathError> {
    thread::run(|| {
        let namespace = open(pin)?;
        debug!(namespace = %pin.display(), "enter the network namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .with_path("enter the network namespace", pin)?;
        Ok(work())
    })
}

/// Calls `work` inside the network namespace of a process, and returns its result; `None` if the process has
/// ended.
///
/// The namespace is entered by pidfd, so that a reused PID does no harm.
pub fn run_in_process_namespace<T: Send>(
    process: ProcessIdentity,
    work: impl FnOnce() -> T + Send,
) -> Result<Option<T>, PathError> {
    let Some(opened) = process.open() else { return Ok(None) };
    thread::run(|| {
        let kind = ThreadNameSpaceType::NETWORK;
        match move_into_thread_name_spaces(opened.as_fd(), kind) {
            Ok(()) => Ok(Some(work())),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => {
                let path = PathBuf::from(format!("/proc/{}/ns/net", process.pid));
                Err(PathError::new("enter the network namespace", &path, error))
            }
        }
    })
}

/// Opens a namespace by the file on which it is pinned.
pub fn open(pin: &Path) -> Result<OwnedFd, PathError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, pin, flags, Mode::empty()).with_path("open the namespace", pin)
}

/// Opens the network namespace of the calling thread.
pub fn open_current() -> Result<OwnedFd, PathError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).with_path("open", path)
}

/// Unmounts a namespace from the file on which it is pinned, and removes the file. The namespace
/// disappears with its last process. Not an error if nothing is mounted on the file.
pub fn unpin(pin: &Path) -> Result<(), PathError> {
    // A killed process may have mounted it twice.
    unmount(pin)?;
    // Only a damaged pin is not a file.
    remove_tree(pin)
}

fn enter_new() -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: only the network namespace is unshared, and this thread ends after its work.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNET)?;
    }
    Ok(())
}
