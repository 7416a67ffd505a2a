//! Errors of containers.

use std::path::PathBuf;
use std::time::Duration;

use oci_hooks::hooks::pipeline::MatchedHook;
use oci_hooks_files::fs::{PathError, ReadError, ReplaceError};
use oci_hooks_files::process::RunError;
use oci_hooks_files::quantity::ByteSize;
use oci_hooks_files::record::RecordError;
use oci_hooks_image::StoreError;

use crate::bundle::BundleError;
use crate::rootfs::RootfsError;
use crate::runtime::{NO_OUTPUT, RuntimeError};

/// Errors of creating, using or removing a container.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// A record is corrupt, or a newer version wrote it.
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The image's layers cannot be assembled.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// The bundle cannot be written.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The program for limited disks is missing.
    #[error("cannot limit the disk of a container: mkfs.ext4 not found: install e2fsprogs")]
    NoMkfs,
    #[error(
        "cannot limit {what} to {}: only root of the host can mount a disk image; leave the limit out, or \
         run the program as root", ByteSize(*limit_bytes)
    )]
    NoLoopDevices {
        /// The disk of a container, or named volumes.
        what: &'static str,
        limit_bytes: u64,
    },
    /// The file system of a limited disk cannot be created.
    #[error("cannot make a file system in {}: {message}", path.display())]
    Mkfs { path: PathBuf, message: String },
    /// The limit of existing volumes differs from the requested one.
    #[error(
        "named volumes are limited to {} in {}, but `volumes` under [limits] is now {}: run `e2fsck -f` and \
         `resize2fs` on it, or remove them with `container-hook volumes rm`",
        ByteSize(*size_bytes), path.display(), ByteSize(*limit_bytes)
    )]
    VolumesSize {
        /// File of the volumes' file system.
        path: PathBuf,
        size_bytes: u64,
        limit_bytes: u64,
    },
    /// Existing volumes were created without a limit.
    #[error(
        "named volumes in {} were created without a limit, but `volumes` under [limits] is now {}: move them, \
         or remove them with `container-hook volumes rm`",
        path.display(), ByteSize(*limit_bytes)
    )]
    VolumesUnlimited { path: PathBuf, limit_bytes: u64 },
    /// A program could not be run.
    #[error(transparent)]
    Program(#[from] RunError),
    /// The container does not exist.
    #[error("unknown container {id}")]
    Unknown { id: String },
    /// Several ids have this prefix.
    #[error("{id} is ambiguous: more than one container has an id with this prefix")]
    Ambiguous { id: String },
    /// The container exists but has ended.
    #[error("container {id} is not running{}", ended.map_or(String::new(), |code| format!(": it ended with code {code}")))]
    NotRunning { id: String, ended: Option<i32> },
    /// The container runs, but its first process does not start the step.
    #[error(
        "container {id} starts no more steps: its job has stopped or replaced the container's first process, which \
         starts them"
    )]
    NoSteps { id: String },
    /// The monitor did not start the container.
    #[error("cannot start container {id}: {message}")]
    Monitor { id: String, message: String },
    /// The container did not start, probably because of one of its hooks.
    #[error("{error}; the container's hooks are {}", list_hooks(hooks))]
    Hook { error: Box<ContainerError>, hooks: Vec<MatchedHook> },
    /// Killed processes did not end.
    #[error("the processes of container {id} did not end within {} seconds after they were killed", timeout.as_secs())]
    Unkillable { id: String, timeout: Duration },
}

/// Returns the hook files, each with its stages.
fn list_hooks(hooks: &[MatchedHook]) -> String {
    hooks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl ContainerError {
    /// Names the hook files of a container that did not start, if the runtime's message is about a hook, or missing.
    pub(super) fn with_hooks(self, hooks: &[MatchedHook]) -> Self {
        // One of runc, two of crun: the last if the hook ended before it had read the state.
        let words = [" hook #", "executing hook", "writing to pipe"];
        let message = match &self {
            ContainerError::Runtime(RuntimeError::Failed { message, .. })
            | ContainerError::Monitor { message, .. } => message,
            _ => return self,
        };
        let is_about_hooks = words.iter().any(|word| message.contains(word));
        if hooks.is_empty() || !(is_about_hooks || message.ends_with(NO_OUTPUT)) {
            return self;
        }
        ContainerError::Hook { error: Box::new(self), hooks: hooks.to_vec() }
    }

    /// Returns whether the error means that a record is unreadable: corrupt, or of another version.
    pub fn is_unreadable_record(&self) -> bool {
        match self {
            ContainerError::Record(_) => true,
            ContainerError::Read(error) => error.is_file_defect(),
            _ => false,
        }
    }

    /// Returns whether another version of this program may have written the record that caused the error.
    pub fn is_of_other_version(&self) -> bool {
        matches!(self, ContainerError::Record(error) if error.is_of_other_version())
    }

    /// Returns whether a newer version of this program wrote the record that caused the error.
    pub fn is_newer_record(&self) -> bool {
        matches!(self, ContainerError::Record(error) if error.is_newer())
    }
}
