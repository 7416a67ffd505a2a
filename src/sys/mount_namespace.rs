//! Mount namespaces: what is mounted in one, only the processes in it see.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tracing::debug;

use super::fs::{PathContext as _, PathError};
use super::thread;

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
