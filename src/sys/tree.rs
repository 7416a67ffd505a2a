//! Copies of directory trees: owners, modes, times, extended attributes, hard links and devices.
//!
//! Nothing outside the two directories is reached, whoever changes them meanwhile: what is copied is
//! opened once and used by its descriptor, what is made is found again by its descriptor or by
//! device and inode, and no symbolic link is followed.

mod attributes;

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fgetxattr, fstat, linkat, mkdirat, mknodat,
    open, openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::beneath::open_strictly;
use super::fs::{PathContext, PathError};
use super::removal::remove_all;
use attributes::{attributes, node_attributes};

/// What a tree is copied for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To have it again as it is.
    Plain,
    /// To lay it over what is there, as an overlay would: its whiteouts take away what is below.
    Layer,
}

/// How a tree is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// What it is copied for.
    pub purpose: Purpose,
    /// What becomes of the owners; without it they stay.
    pub owners: Option<OwnerShift>,
}

impl From<Purpose> for CopyOptions {
    fn from(purpose: Purpose) -> Self {
        CopyOptions { purpose, owners: None }
    }
}

/// A range of user and group ids and where a copy has it: files of a user namespace belong to other
/// ids on disk than its processes see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerShift {
    /// The first id of the range.
    pub from: u32,
    /// What that becomes.
    pub to: u32,
    /// The number of ids; those outside the range stay as they are.
    pub count: u32,
}

impl OwnerShift {
    /// Returns what an id becomes.
    pub fn apply(&self, id: u32) -> u32 {
        match id.checked_sub(self.from) {
            // A range that leads past the last id is a mistake of the caller, not to be wrapped.
            Some(offset) if offset < self.count => self.to.checked_add(offset).unwrap_or(id),
            _ => id,
        }
    }
}

/// Copies what is in a directory into another, and the attributes of the directory itself.
pub fn copy(from: &Path, to: &Path, options: CopyOptions) -> Result<(), PathError> {
    let source = open(from, DIRECTORY, Mode::empty()).at("open", from)?;
    let target = open(to, DIRECTORY, Mode::empty()).at("open", to)?;
    copy_between((source.as_fd(), from), (target.as_fd(), to), options)
}

/// Does the same for directories that are open; the paths are for messages.
pub fn copy_between(
    (from, from_path): (BorrowedFd<'_>, &Path),
    (to, to_path): (BorrowedFd<'_>, &Path),
    options: CopyOptions,
) -> Result<(), PathError> {
    let stat = fstat(from).at("look at", from_path)?;
    let mut copier = Copier { top: to, links: HashMap::new(), options };
    copier.directory(from, to, Path::new("")).map_err(|error| error.at(to_path))?;
    attributes(from, to, &stat, options).at("copy the attributes of", from_path)
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opened so, a file stays the one that it was when it was opened, and nothing happens to it.
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Copier<'a> {
    top: BorrowedFd<'a>,
    /// Files with more than one name, by device and inode.
    links: HashMap<(u64, u64), FirstName>,
    options: CopyOptions,
}

/// The first copy of a file with more than one name.
struct FirstName {
    /// From the top. Somebody else may have put something else there since.
    path: PathBuf,
    /// The device and inode of the copy.
    id: (u64, u64),
}

/// An error and the name, from the top, of what it is about.
struct Failed(PathBuf, io::Error);

impl Failed {
    fn at(self, top: &Path) -> PathError {
        PathError::new("copy to", &top.join(self.0), self.1)
    }
}

impl Copier<'_> {
    fn directory(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        at: &Path,
    ) -> Result<(), Failed> {
        let here = |error: io::Error| Failed(at.to_owned(), error);
        if self.options.purpose == Purpose::Layer && is_opaque(from) {
            empty(to).map_err(here)?;
        }
        for name in names(from).map_err(|error| here(error.into()))? {
            let path = at.join(OsStr::from_bytes(name.to_bytes()));
            self.entry(from, to, &name, &path).map_err(|error| match error {
                EntryError::Here(error) => Failed(path, error),
                EntryError::Below(failed) => failed,
            })?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
    ) -> Result<(), EntryError> {
        let source = openat(from, name, PATH_ONLY, Mode::empty())?;
        let stat = fstat(&source)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Socket {
            return Ok(());
        }
        if kind == FileType::Directory {
            let source = openat(&source, c".", DIRECTORY, Mode::empty())?;
            let target = make_directory(to, name)?;
            self.directory(source.as_fd(), target.as_fd(), path).map_err(EntryError::Below)?;
            return Ok(attributes(source.as_fd(), target.as_fd(), &stat, self.options)?);
        }
        remove_all(to, name.to_bytes())?;
        let is_whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        if self.options.purpose == Purpose::Layer && is_whiteout {
            return Ok(());
        }
        if stat.st_nlink > 1 && self.link(&stat, to, name)? {
            return Ok(());
        }
        let made = match kind {
            FileType::RegularFile => self.file(&source, &stat, to, name)?,
            _ => self.node(&source, &stat, to, name)?,
        };
        if stat.st_nlink > 1 {
            let made = FirstName { path: path.to_owned(), id: id(&fstat(&made)?) };
            self.links.insert(id(&stat), made);
        }
        Ok(())
    }

    /// Gives the copy of a file one more name, if it has been copied and is where it was.
    fn link(&self, source: &Stat, to: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
        let Some(first) = self.links.get(&id(source)) else { return Ok(false) };
        // What stands there by now may be anything, a link that leads out of the tree included.
        let Ok(file) = open_strictly(self.top, &first.path, PATH_ONLY, Mode::empty()) else {
            return Ok(false);
        };
        if id(&fstat(&file)?) != first.id {
            return Ok(false);
        }
        match linkat(&file, c"", to, name, AtFlags::EMPTY_PATH) {
            // What the kernel says to those who may not read every file (CAP_DAC_READ_SEARCH).
            Err(Errno::NOENT) => linkat(CWD, by_number(&file), to, name, AtFlags::SYMLINK_FOLLOW)?,
            done => done?,
        }
        Ok(true)
    }

    fn file(
        &self,
        source: &OwnedFd,
        stat: &Stat,
        to: BorrowedFd<'_>,
        name: &CStr,
    ) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut source = File::from(open(by_number(source), flags, Mode::empty())?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut target = File::from(openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
        // The kernel copies; on a file system that can, it shares the blocks.
        io::copy(&mut source, &mut target)?;
        attributes(source.as_fd(), target.as_fd(), stat, self.options)?;
        Ok(target.into())
    }

    /// Makes a symbolic link, a FIFO or a device, which cannot be opened by whoever makes it.
    fn node(
        &self,
        source: &OwnedFd,
        stat: &Stat,
        to: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<OwnedFd, Errno> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::Symlink => symlinkat(readlinkat(source, c"", Vec::new())?, to, name)?,
            // Nobody but its owner may use it until it has the mode it is to have.
            kind => mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev)?,
        }
        let made = open_strictly(to, name, PATH_ONLY, Mode::empty())?;
        let found = fstat(&made)?;
        // Of the same kind, it is as good as the one that was made: both are in the tree alone, since
        // nobody can link to what is on another mount.
        if FileType::from_raw_mode(found.st_mode) != kind || found.st_rdev != stat.st_rdev {
            return Err(Errno::STALE);
        }
        node_attributes(&made, stat, self.options)?;
        Ok(made)
    }
}

/// Returns what tells a file from all others.
fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns a name of what a descriptor holds, whatever has become of its own name.
fn by_number(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

enum EntryError {
    Here(io::Error),
    Below(Failed),
}

impl<E: Into<io::Error>> From<E> for EntryError {
    fn from(error: E) -> Self {
        EntryError::Here(error.into())
    }
}

/// Returns the names in a directory.
fn names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Opens a directory, which is made in place of whatever else has its name. Nothing may be mounted
/// on it.
fn make_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => unlinkat(parent, name, AtFlags::empty())?,
        done => return done,
    }
    mkdirat(parent, name, Mode::RWXU)?;
    open_strictly(parent, name, DIRECTORY, Mode::empty())
}

fn empty(directory: BorrowedFd<'_>) -> io::Result<()> {
    names(directory)?.iter().try_for_each(|name| remove_all(directory, name.to_bytes()))
}

/// The attributes by which overlays, of root and of others, know a directory that hides the one
/// below it.
const OPAQUE: [&CStr; 2] = [c"trusted.overlay.opaque", c"user.overlay.opaque"];

/// Returns whether overlays hide what lower layers have in a directory.
pub fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    OPAQUE.iter().any(|name| {
        let mut value = [0; 1];
        fgetxattr(directory, *name, &mut value) == Ok(1) && value == *b"y"
    })
}

#[cfg(test)]
mod tests;
