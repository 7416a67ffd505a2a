//! Directories beneath which names are looked up that somebody else chose.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, mkdirat, openat2,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{HostFile, PATH_ONLY};
use crate::sys::beneath::retry;
use crate::sys::fs::{PathContext as _, PathError};

/// No way out, and no symbolic link that others could point elsewhere.
const STRICT: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A directory beneath which names are looked up that others choose: the work directory of a runner, or a
/// directory that workflows may mount from.
///
/// Paths are resolved by the kernel beneath the directory (`openat2` with `RESOLVE_BENEATH` and
/// `RESOLVE_NO_SYMLINKS`).
#[derive(Clone, Debug)]
pub struct HostRoot {
    dir: HostFile,
}

impl HostRoot {
    /// Opens a directory that the administrator or the runner names.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        Self::of(HostFile::open_trusted(path)?)
    }

    /// Opens a directory beneath this one, to have names looked up beneath that one alone.
    pub fn subdirectory(&self, relative: &Path) -> Result<Self, PathError> {
        Self::of(self.open(relative)?)
    }

    /// Returns a directory that is open already.
    pub fn of(dir: HostFile) -> Result<Self, PathError> {
        if dir.is_dir() { Ok(HostRoot { dir }) } else { Err(dir.error("open", Errno::NOTDIR)) }
    }

    /// Returns the names of what is in the directory, sorted.
    pub fn names(&self) -> Result<Vec<OsString>, PathError> {
        let dir = self.dir.reopen()?;
        let entries = Dir::read_from(&dir).map_err(|error| self.dir.error("list", error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| self.dir.error("list", error))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the directory itself.
    pub fn dir(&self) -> &HostFile {
        &self.dir
    }

    /// Returns the rest of a path that begins with the name of the directory, compared as text:
    /// what the rest leads to is for the other methods to find out.
    pub fn relative<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.dir.name).ok()
    }

    /// Opens what is at a path, to be looked at or mounted.
    pub fn open(&self, relative: &Path) -> Result<HostFile, PathError> {
        let name = self.name_of(relative);
        let path = or_dot(relative);
        let opened = retry(|| openat2(self.dir.as_fd(), path, PATH_ONLY, Mode::empty(), STRICT));
        HostFile::from_fd(opened.at("open", &name)?, &name)
    }

    /// Opens what is at a path, or makes a directory there, with those above it, which belong to a
    /// user and group.
    pub fn open_or_make_dir(
        &self,
        relative: &Path,
        owner: (u32, u32),
    ) -> Result<HostFile, PathError> {
        match self.open(relative) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let name = self.name_of(relative);
        make_dirs(self.dir.as_fd(), relative, owner).at("make the directory", &name)?;
        self.open(relative)
    }

    /// Opens a file to read it; its directory too, to list it.
    pub fn read(&self, relative: &Path) -> Result<File, PathError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.file(relative, flags)
    }

    /// Opens a file to write it, made if it is missing. Nothing of it is changed yet.
    pub fn write(&self, relative: &Path) -> Result<File, PathError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.file(relative, flags)?;
        let name = self.name_of(relative);
        let metadata = file.metadata().at("look at", &name)?;
        if !metadata.is_file() {
            return Err(PathError::new("write", &name, io::Error::other("it is not a file")));
        }
        Ok(file)
    }

    fn file(&self, relative: &Path, flags: OFlags) -> Result<File, PathError> {
        let name = self.name_of(relative);
        let mode =
            if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        let path = or_dot(relative);
        let opened =
            retry(|| openat2(self.dir.as_fd(), path, flags | OFlags::CLOEXEC, mode, STRICT));
        Ok(File::from(opened.at("open", &name)?))
    }

    fn name_of(&self, relative: &Path) -> PathBuf {
        // Without the slash that joining nothing would add.
        self.dir.name.join(relative).components().collect()
    }
}

/// Returns the name that a directory has beneath itself if there is none.
fn or_dot(relative: &Path) -> &Path {
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

/// Makes the missing ones of the directories of a path. No symbolic link is followed.
fn make_dirs(root: BorrowedFd<'_>, relative: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    let mut directory = retry(|| openat2(root, c".", PATH_ONLY, Mode::empty(), STRICT))?;
    for name in relative {
        let made = match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        directory = retry(|| openat2(directory.as_fd(), name, flags, Mode::empty(), STRICT))?;
        // Somebody else may have put another one there meanwhile, which is not given away.
        if made && fstat(&directory)?.st_uid == geteuid().as_raw() && uid != geteuid().as_raw() {
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            chownat(&directory, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
        }
    }
    Ok(())
}
