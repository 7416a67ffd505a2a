//! What can go wrong.

use std::path::PathBuf;

use super::devices::DeviceError;
use super::user::UserError;
use crate::hooks::pipeline::PipelineFailure;
use crate::sys::fs::PathError;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Neither the image nor the request says what to run.
    #[error("no command: the image has none; give one")]
    NoCommand,
    /// The user cannot be found.
    #[error(transparent)]
    User(#[from] UserError),
    #[error("the restricted profile does not let containers {what}")]
    Restricted { what: &'static str },
    /// The container must not run as root, and would.
    #[error(
        "the container must not run as root: neither the image nor the request names another user"
    )]
    Root,
    /// The working directory is not an absolute path.
    #[error("the working directory {} is not an absolute path", path.display())]
    RelativeCwd { path: PathBuf },
    /// The working directory would be one of a process, perhaps of the host.
    #[error("the working directory {} is in /proc, which is not allowed", path.display())]
    CwdInProc { path: PathBuf },
    /// The image has something else where a file system has to be mounted.
    #[error("/{path} of the image is not a directory")]
    NotADirectory {
        /// The path, from the top of the image.
        path: &'static str,
    },
    /// A mount target is not an absolute path to somewhere below the root.
    #[error("invalid mount target {}: expected an absolute path below /", path.display())]
    MountTarget { path: PathBuf },
    /// A mount target is in /proc.
    #[error("invalid mount target {}: /proc is mounted by the runtime", path.display())]
    MountInProc { path: PathBuf },
    /// A mount would take the place of the container's devices.
    #[error("cannot mount {source_name} on {}: it would hide the container's devices", path.display())]
    MountOnDevices {
        path: PathBuf,
        /// What was to be mounted.
        source_name: String,
    },
    /// A mount target is reached by a link in another mount, which may be another one by then.
    #[error("cannot mount on {}: it goes through a symlink in {}", path.display(), above.display())]
    MountThroughLink {
        path: PathBuf,
        /// The target of the other mount.
        above: PathBuf,
    },
    /// Two mounts have the same target.
    #[error("duplicate mount target {}", path.display())]
    DuplicateMount { path: PathBuf },
    /// A path is not text, and config.json is.
    #[error("path {} is not UTF-8, as config.json needs", path.display())]
    NotUtf8 { path: PathBuf },
    /// The source of a bind mount does not exist.
    #[error("cannot mount {}: not found on the host", path.display())]
    NoSource { path: PathBuf },
    /// The source of a mount depends on where one is.
    #[error("cannot mount {}: expected an absolute path", path.display())]
    RelativeSource { path: PathBuf },
    #[error(
        "cannot mount {name} on {}: its file system cannot map owners ({reason}), so files that the \
         container makes there would belong to other users; move it to another file system or, of the \
         runner's directories, set `ownership = \"keep\"` under [mounts] of the settings", path.display()
    )]
    NoIdMapping {
        /// What was to be mounted.
        name: String,
        /// The path in the container.
        path: PathBuf,
        reason: std::io::Error,
    },
    /// The container's user namespace has no such id.
    #[error(
        "the container has users and groups 0 to {}, not {id}: choose another user, or set \
         `user-namespace = \"host\"` under [security] of the settings", count - 1
    )]
    NoSuchId { id: u32, count: u32 },
    /// A path cannot be reached from the container's user namespace.
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
    #[error("unknown capability {name:?}")]
    Capability { name: String },
    /// The sysctl is not of a namespace of the container's own.
    #[error("sysctl {name} denied: it is not of a namespace of the container's own")]
    Sysctl { name: String },
    /// A device cannot be given.
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Hooks(#[from] PipelineFailure),
    /// The configuration has a path that is not UTF-8, or a process that is not as specified.
    #[error("invalid container configuration")]
    Configuration(#[source] serde_json::Error),
    #[error(transparent)]
    Path(#[from] PathError),
}
