//! The runner's end.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};

use super::error::FilesError;
use crate::sys::fs::{PathContext as _, PathError};

/// A directory of the runner.
pub struct HostTree {
    root: OwnedFd,
    path: PathBuf,
}

/// How much is taken from a container at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of contents.
    pub bytes: u64,
}

impl Limits {
    /// Fails if so much is too much.
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
        let root = File::open(path).at("open", path)?;
        if !root.metadata().at("open", path)?.is_dir() {
            return Err(PathError::new("list", path, io::ErrorKind::NotADirectory));
        }
        Ok(HostTree { root: root.into(), path: path.to_owned() })
    }

    /// Opens the directory anew: how far it was listed belongs to a descriptor and its copies.
    pub fn root(&self) -> Result<OwnedFd, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.root, c".", flags, Mode::empty()).at("open", &self.path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what people call it.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}
