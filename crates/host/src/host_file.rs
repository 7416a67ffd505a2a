//! Opens files and directories of the host by untrusted names, once. The engine and
//! `container-hook` open with it all host paths that a workflow or a container's specification
//! names.
//!
//! All checks and uses go through the descriptor, so that swapping the file at its path has no
//! effect. A [`HostFile`] keeps its path only for messages.
mod root;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use oci_hooks_files::beneath::{ConfinedRoot, descriptor_path, open_as_root};
use oci_hooks_files::fs::{PathContext as _, PathError, READ_FLAGS};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, openat, statat,
};
use rustix::io::Errno;

pub use root::HostRoot;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// An open file of the host, by an `O_PATH` descriptor.
#[derive(Clone)]
pub struct HostFile {
    file: Arc<OwnedFd>,
    name: Arc<Path>,
    stat: Stat,
}

impl HostFile {
    /// Opens a path that the administrator or this program chose; symbolic links are followed.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        let file = openat(CWD, path, PATH_ONLY, Mode::empty()).with_path("open", path)?;
        Self::from_fd(file, path)
    }

    fn from_fd(file: OwnedFd, name: &Path) -> Result<Self, PathError> {
        let stat = fstat(&file).with_path("inspect", name)?;
        Ok(HostFile { file: Arc::new(file), name: name.into(), stat })
    }

    /// Returns the path for messages. The file may have been renamed or removed since.
    pub fn display(&self) -> std::path::Display<'_> {
        self.name.display()
    }

    /// Returns the error of a failed action on the file.
    pub fn error(&self, action: &'static str, source: impl Into<io::Error>) -> PathError {
        PathError::new(action, &self.name, source)
    }

    /// Returns the file type.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Returns whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind().is_dir()
    }

    /// Returns the user and group id of the file when it was opened.
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// Returns the status of the file when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns whether both values are the same file, by device and inode.
    pub fn is_same(&self, other: &HostFile) -> bool {
        let id = |file: &HostFile| (file.stat.st_dev, file.stat.st_ino);
        id(self) == id(other)
    }

    /// Returns whether a path currently leads to this file.
    ///
    /// Only for messages and for files that runtimes open by name: the path may change at any time.
    pub fn has_name(&self, name: &Path) -> bool {
        statat(CWD, name, AtFlags::empty())
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (self.stat.st_dev, self.stat.st_ino))
    }

    /// Opens a path as a process with this root directory (`chroot`) would: symbolic links stay
    /// beneath it. If the path does not exist, missing directories are created with the mode of
    /// this one, and belong to `uid` and `gid`. Existing directories keep their owner.
    pub fn open_within(&self, path: &Path, (uid, gid): (u32, u32)) -> Result<HostFile, PathError> {
        let name = self.name.join(path);
        match open_as_root(self.file.as_fd(), path, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return Self::from_fd(opened.with_path("open", &name)?, &name),
        }
        let here = self.file.try_clone().map_err(|error| self.error("open", error))?;
        let finish = |made: BorrowedFd<'_>| {
            fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            fchmod(made, Mode::from_raw_mode(self.stat.st_mode))
        };
        let root = ConfinedRoot::from_fd(here, &self.name);
        let made = root.mkdir_all(path, Mode::from_raw_mode(0o755), finish)?;
        Self::from_fd(made, &name)
    }

    /// Reopens the file for reading.
    ///
    /// Fails for anything but regular files and directories: a FIFO would block, and opening a device may have
    /// side effects.
    pub fn reopen(&self) -> Result<File, PathError> {
        if !matches!(self.kind(), FileType::RegularFile | FileType::Directory) {
            let error = io::Error::other("it is neither a file nor a directory");
            return Err(self.error("open", error));
        }
        let opened = openat(CWD, descriptor_path(self.as_fd()), READ_FLAGS, Mode::empty());
        opened.map(File::from).map_err(|error| self.error("open", error))
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = (self.stat.st_dev, self.stat.st_ino);
        f.debug_struct("HostFile").field("name", &self.name).field("id", &id).finish()
    }
}

/// Two values are equal if they are the same file.
impl PartialEq for HostFile {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for HostFile {}

#[cfg(test)]
mod tests;
