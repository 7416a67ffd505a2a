//! Errors of bundles.

use std::path::PathBuf;

use oci_hooks::hooks::pipeline::PipelineFailure;
use oci_hooks_files::fs::PathError;

use super::cdi::CdiError;
use super::devices::DeviceError;
use super::user::UserError;

/// Errors of writing a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Neither the image nor the request names a command.
    #[error("no command: the image has none, and none was given")]
    NoCommand,
    /// A user or group cannot be resolved.
    #[error(transparent)]
    User(#[from] UserError),
    #[error("the restricted profile does not let containers {what}")]
    Restricted { what: &'static str },
    /// The container must not run as root, but would.
    #[error(
        "the container must not run as root: neither the image nor the request names another user"
    )]
    Root,
    /// The working directory is not an absolute path.
    #[error("the working directory {} is not an absolute path", path.display())]
    RelativeCwd { path: PathBuf },
    /// The working directory is in /proc, where it may lead to a directory of the host.
    #[error("the working directory {} is in /proc, which is not allowed", path.display())]
    CwdInProc { path: PathBuf },
    /// The image has a file or a symlink where a file system must be mounted.
    #[error("/{path} of the image is not a directory, as mounts need")]
    NotADirectory {
        /// Path from the root of the image.
        path: &'static str,
    },
    /// The mount target is not an absolute path below the root.
    #[error("invalid mount target {}: expected an absolute path below /", path.display())]
    MountTarget { path: PathBuf },
    /// The mount target is in /proc.
    #[error("invalid mount target {}: /proc is mounted by the runtime", path.display())]
    MountInProc { path: PathBuf },
    /// The mount would hide the container's devices.
    #[error("cannot mount {source_name} on {}: it would hide the container's devices", path.display())]
    MountOnDevices { path: PathBuf, source_name: String },
    /// The mount target goes through a symlink in another mount, which may change before the runtime follows it.
    #[error(
        "cannot mount on {}: the path goes through a symlink in the mount {}: name a path without symlinks",
        path.display(),
        above.display()
    )]
    MountThroughLink {
        path: PathBuf,
        /// Target of the other mount.
        above: PathBuf,
    },
    /// Two mounts have the same target.
    #[error("duplicate mount target {}", path.display())]
    DuplicateMount { path: PathBuf },
    /// The path is not UTF-8, which config.json requires.
    #[error("path {} is not UTF-8, as config.json needs", path.display())]
    NotUtf8 { path: PathBuf },
    /// The source of a bind mount does not exist.
    #[error("cannot mount {}: not found on the host", path.display())]
    NoSource { path: PathBuf },
    /// The source of a mount is a relative path.
    #[error("cannot mount {}: expected an absolute path", path.display())]
    RelativeSource { path: PathBuf },
    #[error(
        "cannot mount {name} on {}: its file system cannot map owners ({reason}), so files there would belong \
         to other users; {}move it to another file system, or set `ownership = \"keep\"` under [mounts] \
         of the settings", path.display(), if *can_be_read { "mount it read-only (`:ro`), " } else { "" }
    )]
    NoIdMapping {
        name: String,
        path: PathBuf,
        /// Set if the source can be mounted read-only instead.
        can_be_read: bool,
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
         with a user namespace need: `chmod o+x {}`, choose another `root` under [store] of the \
         settings, or set `user-namespace = \"host\"` under [security]", path.display(), above.display(), above.display()
    )]
    Unreachable { path: PathBuf, above: PathBuf },
    #[error("unknown capability {name:?}")]
    Capability { name: String },
    /// The sysctl does not belong to a namespace of the container.
    #[error(
        "sysctl {name} denied: expected the dotted name of a sysctl of the container's own namespaces, as others would change \
         the host"
    )]
    Sysctl { name: String },
    /// A device cannot be added.
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Cdi(#[from] CdiError),
    #[error(transparent)]
    Hooks(#[from] PipelineFailure),
    /// The configuration has a path that is not UTF-8, or a process that violates the specification.
    #[error("invalid container configuration")]
    Configuration(#[source] serde_json::Error),
    #[error(transparent)]
    Path(#[from] PathError),
}
