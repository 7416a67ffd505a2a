//! What can go wrong.

use std::path::PathBuf;

use super::devices::DeviceError;
use super::hooks::HooksError;
use super::user::UserError;
use crate::sys::fs::PathError;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Neither the image nor the request says what to run.
    #[error("nothing to run: the image has no command; give one")]
    NoCommand,
    /// The user cannot be found.
    #[error(transparent)]
    User(#[from] UserError),
    /// The profile forbids it.
    #[error("the restricted profile does not let containers {what}")]
    Restricted {
        /// What.
        what: &'static str,
    },
    /// The container must not run as root, and would.
    #[error("it must not run as root, and neither the image nor the request names another user")]
    Root,
    /// The working directory is not an absolute path.
    #[error("the working directory {} is not an absolute path", path.display())]
    RelativeCwd {
        /// The path.
        path: PathBuf,
    },
    /// The working directory would be one of a process, perhaps of the host.
    #[error("the working directory {} is in /proc, which is not allowed", path.display())]
    CwdInProc {
        /// The path.
        path: PathBuf,
    },
    /// The image has something else where a file system has to be mounted.
    #[error("/{path} of the image is not a directory")]
    NotADirectory {
        /// The path, from the top of the image.
        path: &'static str,
    },
    /// A mount target is not an absolute path to somewhere below the root.
    #[error("cannot mount on {}: write an absolute path below /", path.display())]
    MountTarget {
        /// The path.
        path: PathBuf,
    },
    /// A mount target is in /proc.
    #[error("cannot mount on {}: /proc is the runtime's", path.display())]
    MountInProc {
        /// The path.
        path: PathBuf,
    },
    /// A mount would take the place of the container's devices.
    #[error("cannot mount {source_name} on {}: there the devices are", path.display())]
    MountOnDevices {
        /// The path.
        path: PathBuf,
        /// What was to be mounted.
        source_name: String,
    },
    /// A mount target is reached by a link in another mount, which may be another one by then.
    #[error("cannot mount on {}: it goes through a symbolic link in {}", path.display(), above.display())]
    MountThroughLink {
        /// The path.
        path: PathBuf,
        /// The target of the other mount.
        above: PathBuf,
    },
    /// Two mounts have the same target.
    #[error("two mounts on {}", path.display())]
    DuplicateMount {
        /// The path.
        path: PathBuf,
    },
    /// A path is not text, and config.json is.
    #[error("{} is not UTF-8, which config.json has to be", path.display())]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The source of a bind mount does not exist.
    #[error("cannot mount {}: it does not exist on the host", path.display())]
    NoSource {
        /// The path.
        path: PathBuf,
    },
    /// The source of a mount depends on where one is.
    #[error("cannot mount {}: write an absolute path", path.display())]
    RelativeSource {
        /// The path.
        path: PathBuf,
    },
    /// No such capability.
    #[error(
        "cannot mount {name} on {}: its file system cannot map owners ({reason}), so files that the \
         container makes there would belong to other users; move it to another file system, or set \
         `ownership = \"keep\"` under [mounts] of the settings", path.display()
    )]
    NoIdMapping {
        /// What was to be mounted.
        name: String,
        /// The path in the container.
        path: PathBuf,
        /// What the kernel says.
        reason: std::io::Error,
    },
    /// The container's user namespace has no such id.
    #[error(
        "the container has users and groups 0 to {}, not {id}: choose another user, or set \
         `user-namespace = \"host\"` under [security] of the settings", count - 1
    )]
    NoSuchId {
        /// The id.
        id: u32,
        /// How many there are.
        count: u32,
    },
    /// Something cannot share what the host has in common for all from a user namespace.
    #[error(
        "{} cannot be reached by every user of the host ({} has no `x` for others), which containers \
         with a user namespace need: `chmod o+x` it, choose another `root` under [store] of the \
         settings, or set `user-namespace = \"host\"` under [security]", path.display(), above.display()
    )]
    Unreachable {
        /// The path that is to be reached.
        path: PathBuf,
        /// The directory that stands in the way.
        above: PathBuf,
    },
    /// There is no such capability.
    #[error("there is no capability {name:?}")]
    Capability {
        /// The name.
        name: String,
    },
    /// The kernel parameter is not one of the container's own.
    #[error("the kernel parameter {name} is not of a namespace that the container has for itself")]
    Sysctl {
        /// The parameter.
        name: String,
    },
    /// A device cannot be given.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Hooks cannot be added.
    #[error(transparent)]
    Hooks(#[from] HooksError),
    /// A `precreate` hook left something that cannot be read back.
    #[error("cannot read what precreate hooks made of the configuration")]
    HooksOutput(#[source] serde_json::Error),
    /// A file or directory.
    #[error(transparent)]
    Path(#[from] PathError),
}
