//! Directories beneath which names are looked up that somebody else chose.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use super::open::{STRICT, act, make_dirs, open_as, or_dot};
use super::{HostFile, PATH_ONLY};
use crate::sys::beneath::retry;
use crate::sys::caller::Caller;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::userns::PrivateIds;

/// A directory beneath which somebody's files are looked up: a runner's, or one that workflows may
/// mount from.
///
/// Paths are resolved by the kernel beneath the directory (`openat2` with `RESOLVE_BENEATH` and
/// `RESOLVE_NO_SYMLINKS`). With a [`Caller`], all of it is done with their access: what they cannot
/// read is not opened, and what belongs to neither them nor root is refused. Beneath a directory that is
/// theirs alone, what belongs to nobody on the host is theirs too: their containers made it so.
#[derive(Clone, Debug)]
pub struct HostRoot {
    dir: HostFile,
    caller: Option<Caller>,
    /// Whose files are used.
    owners: Owners,
}

/// Whose files are used, of those that the caller can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owners {
    /// Those of the caller and of root.
    Caller,
    /// Those with private ids besides.
    CallerAndContainers,
    Any,
}

impl HostRoot {
    /// Opens a directory that the administrator names, for root's own use.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        let dir = HostFile::open_trusted(path)?;
        Ok(HostRoot { dir: directory(dir)?, caller: None, owners: Owners::Caller })
    }

    /// Opens the directory of a user who may have put something else in its place: no symbolic link
    /// leads to it, and it is theirs.
    pub fn open_as(path: &Path, caller: &Caller) -> Result<Self, PathError> {
        let root = Self::open_shared_as(path, caller)?;
        let owner = root.dir.owner().0;
        if owner != caller.uid {
            return Err(root.dir.error("use", foreign(owner, caller)));
        }
        Ok(HostRoot { owners: Owners::CallerAndContainers, ..root })
    }

    /// Opens such a directory that may be root's too: a cache of tools which users share.
    pub fn open_shared_as(path: &Path, caller: &Caller) -> Result<Self, PathError> {
        let slash = openat(CWD, c"/", PATH_ONLY, Mode::empty()).at("open", Path::new("/"))?;
        let relative = path.strip_prefix("/").unwrap_or(path);
        let dir = directory(open_as(slash.as_fd(), relative, path, Some(caller))?)?;
        let root = HostRoot { dir, caller: Some(caller.clone()), owners: Owners::Caller };
        root.check_owner(&root.dir.stat).at("use", path)?;
        Ok(root)
    }

    /// Opens a directory beneath this one, to have names looked up beneath that one alone.
    pub fn subdirectory(&self, relative: &Path) -> Result<Self, PathError> {
        let dir = directory(self.open(relative)?)?;
        Ok(HostRoot { dir, caller: self.caller.clone(), owners: self.owners })
    }

    /// Returns a directory that is open already, for root's own use.
    pub fn of(dir: HostFile) -> Result<Self, PathError> {
        Ok(HostRoot { dir: directory(dir)?, caller: None, owners: Owners::Caller })
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

    /// Returns the same directory for what a user asks for, whoever its files belong to: what they
    /// cannot read is not opened all the same.
    #[must_use]
    pub fn shared_with(&self, caller: Option<Caller>) -> Self {
        HostRoot { dir: self.dir.clone(), caller, owners: Owners::Any }
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
        let file = open_as(self.dir.as_fd(), relative, &name, self.caller.as_ref())?;
        self.check_owner(&file.stat).at("use", &name)?;
        Ok(file)
    }

    /// Opens what is at a path, or makes a directory there, with those above it, which belong to a
    /// user and group.
    ///
    /// With a caller they are made by them, so that they can belong to nobody else.
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
        let made = act(self.caller.as_ref(), || make_dirs(self.dir.as_fd(), relative, owner));
        made.and_then(|made| made).at("make the directory", &name)?;
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
        let opened = act(self.caller.as_ref(), || {
            Ok(retry(|| openat2(self.dir.as_fd(), path, flags | OFlags::CLOEXEC, mode, STRICT))?)
        });
        let file = opened.and_then(|opened| opened).at("open", &name)?;
        let stat = fstat(&file).at("look at", &name)?;
        self.check_owner(&stat).at("use", &name)?;
        Ok(File::from(file))
    }

    fn check_owner(&self, stat: &Stat) -> io::Result<()> {
        let Some(caller) = &self.caller else { return Ok(()) };
        let uid = stat.st_uid;
        let is_used = match self.owners {
            _ if [caller.uid, 0].contains(&uid) => true,
            Owners::Caller => false,
            Owners::CallerAndContainers => PrivateIds::ALL.contains(&uid),
            Owners::Any => true,
        };
        if is_used { Ok(()) } else { Err(foreign(uid, caller)) }
    }

    fn name_of(&self, relative: &Path) -> PathBuf {
        // Without the slash that joining nothing would add.
        self.dir.name.join(relative).components().collect()
    }
}

fn directory(dir: HostFile) -> Result<HostFile, PathError> {
    if dir.is_dir() { Ok(dir) } else { Err(dir.error("open", Errno::NOTDIR)) }
}

fn foreign(owner: u32, caller: &Caller) -> io::Error {
    let text = format!("it belongs to user {owner}, not to user {} who asks for it", caller.uid);
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
