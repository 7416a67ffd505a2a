//! Network namespaces, and others, that live on without a process: pinned by a mount on a file.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
    move_into_thread_name_spaces, unshare_unsafe,
};
use tracing::debug;

use super::fs::{PathContext as _, PathError};
use super::identity::Identity;
use super::{thread, userns};

/// Makes a network namespace, pins it on a file that is made for it, and returns what `work` returns,
/// which runs inside. It belongs to a user namespace if one is given, to this process's otherwise.
pub fn create<T: Send>(
    pin: &Path,
    owner: Option<BorrowedFd<'_>>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, PathError> {
    if let Some(owner) = owner {
        let namespace = userns::network_namespace(owner).at("make a network namespace for", pin)?;
        self::pin(namespace.as_fd(), pin)?;
        return within(pin, work);
    }
    thread::run(|| {
        enter_new().at("make a network namespace for", pin)?;
        // That of the thread: the process as a whole stays where it is.
        self::pin(current()?.as_fd(), pin)?;
        Ok(work())
    })
}

/// Pins a namespace, of whatever kind, on a file that is made for it.
pub fn pin(namespace: BorrowedFd<'_>, pin: &Path) -> Result<(), PathError> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(pin).at("create", pin)?;
    let name = format!("/proc/self/fd/{}", namespace.as_raw_fd());
    debug!(on = %pin.display(), "mount a namespace");
    mount_bind(name, pin).at("mount a namespace on", pin)
}

/// Returns what `work` returns, which runs inside a pinned network namespace.
pub fn within<T: Send>(pin: &Path, work: impl FnOnce() -> T + Send) -> Result<T, PathError> {
    thread::run(|| {
        let namespace = open(pin)?;
        debug!(namespace = %pin.display(), "enter the network namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .at("enter the network namespace", pin)?;
        Ok(work())
    })
}

/// Returns what `work` returns, which runs inside the network namespace of a process; none if it has
/// ended.
///
/// The descriptor of the process is what is entered: another one that gets its number has no part in it.
pub fn within_process<T: Send>(
    process: Identity,
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

/// Opens a pinned namespace.
pub fn open(pin: &Path) -> Result<OwnedFd, PathError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, pin, flags, Mode::empty()).at("open the namespace", pin)
}

/// Opens the network namespace that the calling thread is in.
pub fn current() -> Result<OwnedFd, PathError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).at("open", path)
}

/// Takes a pin away, mounted or not. The namespace goes with its last process.
pub fn unpin(pin: &Path) -> Result<(), PathError> {
    debug!(on = %pin.display(), "unmount a namespace");
    loop {
        match unmount(pin, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // A killed process may have mounted it twice.
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(PathError::new("unmount", pin, error)),
        }
    }
    match fs::remove_file(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.at("remove", pin),
    }
}

fn enter_new() -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: of what threads share, only the network namespace is parted from, and this thread
    // ends with what it came for.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNET)?;
    }
    Ok(())
}
