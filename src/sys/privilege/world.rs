//! What is mounted and up in the namespaces of a holder before anything runs there.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use super::loopback;

/// An action that failed, and why.
pub(super) type Failure = (String, io::Error);

/// Mounts what the namespaces of the calling process need, below its root: what is mounted on the host
/// later appears there, and nothing of it on the host.
pub(super) fn settle(root: &Path) -> Result<(), Failure> {
    private_mounts(root)?;
    let proc = root.join("proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", &proc, "proc", flags, None).map_err(failure("mount /proc"))?;
    loopback::up().map_err(|error| ("bring the loopback interface up".to_owned(), error))
}

/// Has nothing that is mounted from now on appear on the host.
pub(super) fn private_mounts(root: &Path) -> Result<(), Failure> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(root, flags).map_err(failure("make mounts private"))
}

pub(super) fn failure(action: &str) -> impl FnOnce(Errno) -> Failure {
    let action = action.to_owned();
    move |error| (action, error.into())
}
