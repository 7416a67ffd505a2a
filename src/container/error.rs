//! What can go wrong with a container.

use std::path::PathBuf;
use std::time::Duration;

use crate::bundle::BundleError;
use crate::image::StoreError;
use crate::rootfs::RootfsError;
use crate::runtime::RuntimeError;
use crate::sys::fs::{PathError, ReadError, ReplaceError};
use crate::sys::process::RunError;
use crate::sys::quantity::Size;
use crate::sys::record::RecordError;

/// A container could not be made, used or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// A record holds something else, or a newer version wrote it.
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The image's layers could not be put together.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// The configuration could not be made.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is nothing to make a limited disk with.
    #[error("cannot limit the disk of a container: mkfs.ext4 not found: install e2fsprogs")]
    NoMkfs,
    /// A limited disk is root's alone.
    #[error(
        "cannot limit {what} to {}: only root of the host can mount a file system that is in a file; leave \
         the limit out, or have root run the program", Size(*limit_bytes)
    )]
    NoLoopDevices {
        /// The disk of a container, or named volumes.
        what: &'static str,
        limit_bytes: u64,
    },
    /// A limited disk could not be made.
    #[error("cannot make a file system in {}: {message}", path.display())]
    Mkfs { path: PathBuf, message: String },
    /// Volumes have a limit that is not the one they are to have.
    #[error(
        "named volumes have {} in {}, and are to have {}: run `e2fsck -f` and `resize2fs` on it, or remove \
         them with `container-hook volumes rm`",
        Size(*size_bytes), path.display(), Size(*limit_bytes)
    )]
    VolumesSize {
        /// The file that they are in.
        path: PathBuf,
        size_bytes: u64,
        /// What they are to have.
        limit_bytes: u64,
    },
    /// Volumes are from a time when they had no limit.
    #[error(
        "named volumes in {} were made without a limit, and are to have {}: move them, or remove them with \
         `container-hook volumes rm`",
        path.display(), Size(*limit_bytes)
    )]
    VolumesUnlimited {
        path: PathBuf,
        /// What they are to have.
        limit_bytes: u64,
    },
    /// A program could not be run.
    #[error(transparent)]
    Program(#[from] RunError),
    /// There is no such container.
    #[error("unknown container {id}")]
    Unknown { id: String },
    /// The beginning of an id fits several.
    #[error("{id} is ambiguous: more than one container has an id with this prefix")]
    Ambiguous { id: String },
    /// The container is there but has ended.
    #[error("container {id} is not running{}", ended.map_or(String::new(), |code| format!(": it ended with code {code}")))]
    NotRunning {
        id: String,
        /// Its code, if it is known.
        ended: Option<i32>,
    },
    /// The container runs, and its first process is to start the step.
    #[error(
        "container {id} takes no more steps: its job has stopped or replaced the first process, which starts them; \
         no other program is sent into the container"
    )]
    NoSteps { id: String },
    /// The process that watches a container did not come up.
    #[error("cannot start container {id}: {message}")]
    Monitor { id: String, message: String },
    /// A process does not die.
    #[error("the processes of container {id} are still there {} seconds after they were killed", timeout.as_secs())]
    Unkillable {
        id: String,
        /// How long it was waited.
        timeout: Duration,
    },
}

impl ContainerError {
    /// Returns whether it says that nobody can read a record: it is damaged, or of another version.
    pub fn is_unreadable_record(&self) -> bool {
        match self {
            ContainerError::Record(_) => true,
            ContainerError::Read(error) => error.is_of_the_file(),
            _ => false,
        }
    }

    /// Returns whether another version of this program may have written the record that it is about.
    pub fn is_of_other_version(&self) -> bool {
        matches!(self, ContainerError::Record(error) if error.is_of_other_version())
    }

    /// Returns whether a newer version of this program wrote the record that it is about.
    pub fn is_newer_record(&self) -> bool {
        matches!(self, ContainerError::Record(error) if error.is_newer())
    }
}
