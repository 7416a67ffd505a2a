//! Directories of the runner.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};

use super::error::FilesError;

/// An open directory of the runner.
pub struct HostTree {
    root: OwnedFd,
    path: PathBuf,
}

/// Limits of one download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeLimits {
    pub entries: u64,
    pub bytes: u64,
}

impl ExchangeLimits {
    /// Fails if the counts exceed the limits.
    pub(super) fn check(&self, entries: u64, bytes: u64) -> Result<(), FilesError> {
        if entries > self.entries {
            let (what, key) = ("files", "max-files");
            return Err(FilesError::Limit { what, limit: self.entries, key });
        }
        if bytes > self.bytes {
            let (what, key) = ("bytes", "max-bytes");
            return Err(FilesError::Limit { what, limit: self.bytes, key });
        }
        Ok(())
    }
}

impl HostTree {
    /// Opens a directory of the runner, whose path is trusted.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let root = File::open(path).with_path("open", path)?;
        if !root.metadata().with_path("open", path)?.is_dir() {
            return Err(PathError::new("list", path, io::ErrorKind::NotADirectory));
        }
        Ok(HostTree { root: root.into(), path: path.to_owned() })
    }

    /// Opens the directory again: duplicates of a descriptor would share its read position.
    pub fn root(&self) -> Result<OwnedFd, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.root, c".", flags, Mode::empty()).with_path("open", &self.path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}
