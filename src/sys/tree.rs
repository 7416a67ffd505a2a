//! Copies of directory trees: owners, modes, times, extended attributes, hard links and devices.
//!
//! Nothing outside the two directories is reached, whoever changes them meanwhile: what is copied is
//! opened once and used by its descriptor, what is made is found again by its descriptor or by
//! device and inode, and no symbolic link is followed.

mod attributes;

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fgetxattr, fstat, linkat, mkdirat, mknodat, open,
    openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::beneath::open_strictly;
use super::descent::{Buffer, DIRECTORY, Descent, Names, list, look};
use super::fs::{PathContext, PathError};
use super::removal::{empty, remove_all};
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
    let source = OpenDirectory { directory: source.as_fd(), path: from };
    copy_between(source, OpenDirectory { directory: target.as_fd(), path: to }, options)
}

/// A directory that is open, with its path for messages.
#[derive(Clone, Copy, Debug)]
pub struct OpenDirectory<'a> {
    pub directory: BorrowedFd<'a>,
    pub path: &'a Path,
}

/// Does the same for directories that are open.
pub fn copy_between(
    from: OpenDirectory<'_>,
    to: OpenDirectory<'_>,
    options: CopyOptions,
) -> Result<(), PathError> {
    let (OpenDirectory { directory: from, path: from_path }, to_path) = (from, to.path);
    let to = to.directory;
    let stat = fstat(from).at("look at", from_path)?;
    // What is given may permit nothing, and its position is its owner's.
    let top = openat(from, c".", DIRECTORY, Mode::empty()).at("open", from_path)?;
    let source = Descent::new(top.as_fd(), Level::new(stat, 0)).at("look at", from_path)?;
    let target = Descent::new(to, ()).at("look at", to_path)?;
    let links = Links { top: to, first: HashMap::new() };
    let mut copier = Copier { source, target, path: Vec::new(), files: Files { links, options } };
    copier.run().map_err(|error| PathError::new("copy to", &copier.shown(to_path), error))?;
    attributes(from, to, &stat, options).at("copy the attributes of", from_path)
}

/// Opened so, a file stays the one that it was when it was opened, and nothing happens to it.
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How many bytes of names of a directory may wait to be gone into; then it is read on.
const MAX_WAITING_BYTES: usize = 16 << 10;

/// How long a path may be that is used or shown.
const MAX_PATH_BYTES: usize = 4096;

/// A directory that is being copied.
struct Level {
    /// Directories in it that are still to be copied.
    waiting: Names,
    /// Where to read on, if there is more.
    position: Option<u64>,
    /// What the copy is to be like, once all is in it.
    stat: Stat,
    /// The length of the path of the one above.
    path_length: usize,
}

impl Level {
    fn new(stat: Stat, path_length: usize) -> Self {
        Level { waiting: Names::default(), position: Some(0), stat, path_length }
    }
}

/// Goes down into both trees at once.
struct Copier<'a> {
    source: Descent<'a, Level>,
    target: Descent<'a, ()>,
    /// That of the directory it is in, from the top, with `/` at the end; then of what went wrong.
    path: Vec<u8>,
    files: Files<'a>,
}

impl Copier<'_> {
    fn run(&mut self) -> io::Result<()> {
        let (source, _) = self.source.here();
        self.files.begin(source, self.target.here().0)?;
        let mut buffer = Buffer::new();
        loop {
            let (_, level) = self.source.here();
            if let Some(name) = level.waiting.pop() {
                self.enter(&name)?;
            } else if let Some(position) = level.position {
                self.read(position, &mut buffer)?;
            } else if !self.leave()? {
                return Ok(());
            }
        }
    }

    fn enter(&mut self, name: &CStr) -> io::Result<()> {
        let path_length = self.path.len();
        if path_length < MAX_PATH_BYTES {
            self.path.extend_from_slice(name.to_bytes());
            self.path.push(b'/');
        }
        let (from, to) = (self.source.here().0, self.target.here().0);
        let source = openat(from, name, DIRECTORY, Mode::empty())?;
        let stat = fstat(&source)?;
        let target = make_directory(to, name)?;
        self.files.begin(source.as_fd(), target.as_fd())?;
        let found = look(source.as_fd())?;
        self.source.enter(source, &found, Level::new(stat, path_length));
        let found = look(target.as_fd())?;
        self.target.enter(target, &found, ());
        Ok(())
    }

    /// Copies what is no directory, and takes note of what is one.
    fn read(&mut self, position: u64, buffer: &mut Buffer) -> io::Result<()> {
        let (from, level) = self.source.here();
        let (to, ()) = self.target.here();
        let (waiting, path, files) = (&mut level.waiting, &mut self.path, &mut self.files);
        let mut result = Ok(());
        let rest = list(from, position, buffer, |name, _| {
            match files.entry(from, to, name, path) {
                Ok(Copied::Yes) => {}
                Ok(Copied::IsDirectory) => waiting.push(name),
                Err(error) => {
                    path.extend_from_slice(name.to_bytes());
                    result = Err(error);
                }
            }
            if result.is_ok() && waiting.bytes() < MAX_WAITING_BYTES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        result?;
        level.position = rest?;
        Ok(())
    }

    /// Goes back to the directory above, or tells that there is none.
    fn leave(&mut self) -> io::Result<bool> {
        let (source, level) = self.source.here();
        let stat = level.stat;
        if !self.path.is_empty() {
            attributes(source, self.target.here().0, &stat, self.files.options)?;
        }
        let Some(left) = self.source.leave()? else { return Ok(false) };
        self.target.leave()?;
        self.path.truncate(left.path_length);
        Ok(true)
    }

    /// Returns the path that it is at, for messages.
    fn shown(&self, top: &Path) -> PathBuf {
        top.join(OsStr::from_bytes(self.path.strip_suffix(b"/").unwrap_or(&self.path)))
    }
}

enum Copied {
    Yes,
    IsDirectory,
}

/// Copies everything but directories.
struct Files<'a> {
    links: Links<'a>,
    options: CopyOptions,
}

impl Files<'_> {
    /// Prepares a directory for what is in another.
    fn begin(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        if self.options.purpose == Purpose::Layer && is_opaque(from) {
            empty(to)?;
        }
        Ok(())
    }

    /// Copies what has a name in a directory, whose path from the top is given.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
    ) -> io::Result<Copied> {
        let source = openat(from, name, PATH_ONLY, Mode::empty())?;
        let stat = fstat(&source)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::Directory => return Ok(Copied::IsDirectory),
            FileType::Socket => return Ok(Copied::Yes),
            _ => remove_all(to, name.to_bytes())?,
        }
        let is_whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        if self.options.purpose == Purpose::Layer && is_whiteout {
            return Ok(Copied::Yes);
        }
        if stat.st_nlink > 1 && self.links.link(&stat, to, name)? {
            return Ok(Copied::Yes);
        }
        let made = match kind {
            FileType::RegularFile => self.file(&source, &stat, to, name)?,
            _ => self.node(&source, &stat, to, name)?,
        };
        if stat.st_nlink > 1 {
            self.links.remember(&stat, &fstat(&made)?, &[path, name.to_bytes()].concat());
        }
        Ok(Copied::Yes)
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

/// Files with more than one name, by device and inode.
struct Links<'a> {
    /// The top of the copy.
    top: BorrowedFd<'a>,
    first: HashMap<(u64, u64), FirstName>,
}

/// The first copy of a file with more than one name.
struct FirstName {
    /// From the top. Somebody else may have put something else there since.
    path: PathBuf,
    /// The device and inode of the copy.
    id: (u64, u64),
}

impl Links<'_> {
    /// Takes note of a copy. One that is too deep to be found again is one of several.
    fn remember(&mut self, source: &Stat, copy: &Stat, path: &[u8]) {
        if path.len() < MAX_PATH_BYTES {
            let path = PathBuf::from(OsStr::from_bytes(path));
            self.first.insert(id(source), FirstName { path, id: id(copy) });
        }
    }

    /// Gives the copy of a file one more name, if it has been copied and is where it was.
    fn link(&self, source: &Stat, to: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
        let Some(first) = self.first.get(&id(source)) else { return Ok(false) };
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
}

/// Returns what tells a file from all others.
fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns a name of what a descriptor holds, whatever has become of its own name.
fn by_number(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
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
