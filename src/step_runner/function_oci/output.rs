//! The archive that is built: there is none until it is whole.

use std::fs::File;
use std::path::PathBuf;

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use super::super::resolve::ARCHIVE;
use super::error::FunctionError;
use crate::sys::beneath::Beneath;
use crate::sys::fs::{PathContext as _, random_u64};

/// A new archive beside the old one; removed when dropped.
#[derive(Debug)]
pub(super) struct NewArchive<'a> {
    directory: BorrowedFd<'a>,
    path: PathBuf,
    /// The name while it is written.
    name: Option<String>,
    pub(super) file: File,
}

impl<'a> NewArchive<'a> {
    pub(super) fn create(directory: &'a Beneath) -> Result<Self, FunctionError> {
        let path = directory.path().join(ARCHIVE);
        let name = format!("{ARCHIVE}.{:016x}.tmp", random_u64());
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let directory = directory.as_fd();
        let file = openat(directory, &name, flags, mode).at("create", &path)?;
        Ok(NewArchive { directory, path, name: Some(name), file: file.into() })
    }

    /// Puts the archive in the place of the old one. Returns its path.
    pub(super) fn finish(mut self) -> Result<PathBuf, FunctionError> {
        if let Some(name) = &self.name {
            renameat(self.directory, name, self.directory, ARCHIVE).at("replace", &self.path)?;
        }
        self.name = None;
        Ok(self.path.clone())
    }

    /// Returns how large the archive is in bytes.
    pub(super) fn size(&self) -> Result<u64, FunctionError> {
        Ok(self.file.metadata().at("read the status of", &self.path)?.len())
    }
}

impl Drop for NewArchive<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}
