//! Files and directories of the host that somebody else names, opened once.
//!
//! Whatever is checked and used is what the descriptor holds: a name that leads elsewhere later
//! changes nothing. So there is no path to be had from these values but for messages.
mod root;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, openat, statat,
};
use rustix::io::Errno;

use super::beneath::{Beneath, open_as_root};
use super::fs::{PathContext as _, PathError};

pub use root::HostRoot;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Something of the host that is open, by a descriptor that permits nothing by itself (`O_PATH`).
#[derive(Clone)]
pub struct HostFile {
    file: Arc<OwnedFd>,
    name: Arc<Path>,
    stat: Stat,
}

impl HostFile {
    /// Opens what only the administrator or this program names; symbolic links are followed.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        let file = openat(CWD, path, PATH_ONLY, Mode::empty()).at("open", path)?;
        Self::from_fd(file, path)
    }

    fn from_fd(file: OwnedFd, name: &Path) -> Result<Self, PathError> {
        let stat = fstat(&file).at("look at", name)?;
        Ok(HostFile { file: Arc::new(file), name: name.into(), stat })
    }

    /// Returns what to call it in messages. It may have another name by now, or none.
    pub fn display(&self) -> std::path::Display<'_> {
        self.name.display()
    }

    /// Returns the error of something that could not be done with it.
    pub fn error(&self, action: &'static str, source: impl Into<io::Error>) -> PathError {
        PathError::new(action, &self.name, source)
    }

    /// Returns what kind of file it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind().is_dir()
    }

    /// Returns the ids of its owner and group when it was opened.
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// Returns all that was known of it when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns whether both are one file.
    pub fn is_same(&self, other: &HostFile) -> bool {
        let id = |file: &HostFile| (file.stat.st_dev, file.stat.st_ino);
        id(self) == id(other)
    }

    /// Returns whether it is a file that its name led to when it was opened, and still is.
    ///
    /// For messages and for files that runtimes insist on looking at by name; nothing is decided by it.
    pub fn has_name(&self, name: &Path) -> bool {
        statat(CWD, name, AtFlags::empty())
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (self.stat.st_dev, self.stat.st_ino))
    }

    /// Opens what is at a path beneath this directory, as a process sees it whose root directory it
    /// is: symbolic links stay beneath. If nothing is there, directories like this one are created for
    /// this user and group. Existing directories keep their owner.
    pub fn within(&self, path: &Path, (uid, gid): (u32, u32)) -> Result<HostFile, PathError> {
        let name = self.name.join(path);
        match open_as_root(self.file.as_fd(), path, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return Self::from_fd(opened.at("open", &name)?, &name),
        }
        let here = self.file.try_clone().map_err(|error| self.error("open", error))?;
        let finish = |made: BorrowedFd<'_>| {
            fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            fchmod(made, Mode::from_raw_mode(self.stat.st_mode))
        };
        let root = Beneath::from_fd(here, &self.name);
        let made = root.mkdir_all(path, Mode::from_raw_mode(0o755), finish)?;
        Self::from_fd(made, &name)
    }

    /// Opens it anew, to read it.
    ///
    /// What is no file or directory is not opened: a FIFO would wait, and a device may do anything.
    pub fn reopen(&self) -> Result<File, PathError> {
        if !matches!(self.kind(), FileType::RegularFile | FileType::Directory) {
            let error = io::Error::other("it is neither a file nor a directory");
            return Err(self.error("open", error));
        }
        reopen(self.as_fd()).map_err(|error| self.error("open", error))
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

/// Two are equal if they are one file.
impl PartialEq for HostFile {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for HostFile {}

/// Opens a file or directory anew, to read it, that a descriptor of `O_PATH` is of.
pub fn reopen(file: BorrowedFd<'_>) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(openat(CWD, link, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests;
