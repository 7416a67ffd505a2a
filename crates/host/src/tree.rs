//! Copies directory trees, with owners, modes, times, extended attributes, hard links and devices. The engine calls it
//! for volumes, and for root file systems where overlays are unavailable.
//!
//! Files outside of the two directories are never accessed, even if the trees change meanwhile: sources are opened
//! once and used by descriptor, copies are identified by descriptor or by device and inode, and no symbolic link is
//! followed.

mod attributes;

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::{PATH_ONLY, descriptor_path, open_strictly};
use oci_hooks_files::descent::{
    DIRECTORY, DirentBuffer, NameStack, TreeDescent, file_status, list,
};
use oci_hooks_files::fs::{PathContext, PathError};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fgetxattr, fstat, linkat, mkdirat, mknodat, open,
    openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::mount::OverlayAttributes;
use super::removal::{remove_all, remove_content};
use attributes::{attributes, node_attributes};

/// The purpose of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPurpose {
    Plain,
    /// Applying an overlay layer to the target: whiteouts remove files of the target.
    Layer,
}

/// Options of copying a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    pub purpose: CopyPurpose,
    /// Change of owners; by default they are kept.
    pub owners: Option<OwnerShift>,
}

impl From<CopyPurpose> for CopyOptions {
    fn from(purpose: CopyPurpose) -> Self {
        CopyOptions { purpose, owners: None }
    }
}

/// Shift of user and group ids in a copy: a range of ids is mapped to another range of the same
/// length. Files of a user namespace have other ids on disk than its processes see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerShift {
    /// First id of the range.
    pub from: u32,
    pub to: u32,
    /// Number of ids; ids outside the range stay as they are.
    pub count: u32,
}

impl OwnerShift {
    /// Returns the id in the copy; ids outside of the range stay as they are.
    pub fn apply(&self, id: u32) -> u32 {
        match id.checked_sub(self.from) {
            // A range beyond the last id is a bug of the caller; ids must not wrap.
            Some(offset) if offset < self.count => self.to.checked_add(offset).unwrap_or(id),
            _ => id,
        }
    }
}

/// Copies the content of a directory into another one, and the attributes of the directory itself.
pub fn copy(from: &Path, to: &Path, options: CopyOptions) -> Result<(), PathError> {
    let source = open(from, DIRECTORY, Mode::empty()).with_path("open", from)?;
    let target = open(to, DIRECTORY, Mode::empty()).with_path("open", to)?;
    let source = OpenDirectory { directory: source.as_fd(), path: from };
    copy_between(source, OpenDirectory { directory: target.as_fd(), path: to }, options)
}

/// An open directory, with its path for messages.
#[derive(Clone, Copy, Debug)]
pub struct OpenDirectory<'a> {
    pub directory: BorrowedFd<'a>,
    pub path: &'a Path,
}

/// Copies the content and the attributes of an open directory to another one.
pub fn copy_between(
    from: OpenDirectory<'_>,
    to: OpenDirectory<'_>,
    options: CopyOptions,
) -> Result<(), PathError> {
    let (OpenDirectory { directory: from, path: from_path }, to_path) = (from, to.path);
    let to = to.directory;
    let stat = fstat(from).with_path("inspect", from_path)?;
    // The given descriptor may be `O_PATH`, and its read position belongs to the caller.
    let top = openat(from, c".", DIRECTORY, Mode::empty()).with_path("open", from_path)?;
    let source =
        TreeDescent::new(top.as_fd(), CopyLevel::new(stat, 0)).with_path("inspect", from_path)?;
    let target = TreeDescent::new(to, ()).with_path("inspect", to_path)?;
    let links = HardLinks { top: to, first: HashMap::new() };
    let mut copier =
        TreeCopier { source, target, path: Vec::new(), files: FileCopier { links, options } };
    copier
        .run()
        .map_err(|error| PathError::new("copy to", &copier.display_path(to_path), error))?;
    attributes(from, to, &stat, options).with_path("copy the attributes of", from_path)
}

/// Limit of the names of subdirectories that are still to be copied, in bytes per directory.
/// Listing a directory continues after they are copied.
const MAX_WAITING_BYTES: usize = 16 << 10;

/// Maximum length of a path that is used or shown.
const MAX_PATH_BYTES: usize = 4096;

/// A directory that is being copied.
struct CopyLevel {
    waiting: NameStack,
    /// Position to continue listing at; `None` at the end.
    position: Option<u64>,
    /// Attributes to set on the copy once its content is complete.
    stat: Stat,
    /// Length of the path of the parent directory, to which the current path is truncated on
    /// leaving.
    path_length: usize,
}

impl CopyLevel {
    fn new(stat: Stat, path_length: usize) -> Self {
        CopyLevel { waiting: NameStack::default(), position: Some(0), stat, path_length }
    }
}

/// A copy in progress, which descends into both trees at once.
struct TreeCopier<'a> {
    source: TreeDescent<'a, CopyLevel>,
    target: TreeDescent<'a, ()>,
    /// Path of the current directory from the top, with `/` at the end; after an error, path of the failed file.
    path: Vec<u8>,
    files: FileCopier<'a>,
}

impl TreeCopier<'_> {
    fn run(&mut self) -> io::Result<()> {
        let (source, _) = self.source.current_directory();
        self.files.begin(source, self.target.current_directory().0)?;
        let mut buffer = DirentBuffer::default();
        loop {
            let (_, level) = self.source.current_directory();
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
        let (from, to) = (self.source.current_directory().0, self.target.current_directory().0);
        let source = openat(from, name, DIRECTORY, Mode::empty())?;
        let stat = fstat(&source)?;
        let target = make_directory(to, name)?;
        self.files.begin(source.as_fd(), target.as_fd())?;
        let found = file_status(source.as_fd())?;
        self.source.enter(source, &found, CopyLevel::new(stat, path_length));
        let found = file_status(target.as_fd())?;
        self.target.enter(target, &found, ());
        Ok(())
    }

    /// Copies all files, and adds subdirectories to the pending names.
    fn read(&mut self, position: u64, buffer: &mut DirentBuffer) -> io::Result<()> {
        let (from, level) = self.source.current_directory();
        let (to, ()) = self.target.current_directory();
        let (waiting, path, files) = (&mut level.waiting, &mut self.path, &mut self.files);
        let mut result = Ok(());
        let rest = list(from, position, buffer, |name, _| {
            match files.entry(from, to, name, path) {
                Ok(EntryCopy::Copied) => {}
                Ok(EntryCopy::IsDirectory) => waiting.push(name),
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

    /// Returns to the parent directory; returns false at the top.
    fn leave(&mut self) -> io::Result<bool> {
        let (source, level) = self.source.current_directory();
        let stat = level.stat;
        if !self.path.is_empty() {
            attributes(source, self.target.current_directory().0, &stat, self.files.options)?;
        }
        let Some(left) = self.source.leave()? else { return Ok(false) };
        self.target.leave()?;
        self.path.truncate(left.path_length);
        Ok(true)
    }

    /// Returns the current path, for messages.
    fn display_path(&self, top: &Path) -> PathBuf {
        top.join(OsStr::from_bytes(self.path.strip_suffix(b"/").unwrap_or(&self.path)))
    }
}

enum EntryCopy {
    Copied,
    IsDirectory,
}

/// A copier of all files except directories and sockets.
struct FileCopier<'a> {
    links: HardLinks<'a>,
    options: CopyOptions,
}

impl FileCopier<'_> {
    /// Empties the target directory if an opaque directory of a layer is copied into it.
    fn begin(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        if self.options.purpose == CopyPurpose::Layer && is_opaque(from) {
            remove_content(to)?;
        }
        Ok(())
    }

    /// Copies an entry of a directory, whose path from the top is given.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
    ) -> io::Result<EntryCopy> {
        let source = openat(from, name, PATH_ONLY, Mode::empty())?;
        let stat = fstat(&source)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::Directory => return Ok(EntryCopy::IsDirectory),
            FileType::Socket => return Ok(EntryCopy::Copied),
            _ => remove_all(to, name.to_bytes())?,
        }
        let is_whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        if self.options.purpose == CopyPurpose::Layer && is_whiteout {
            return Ok(EntryCopy::Copied);
        }
        if stat.st_nlink > 1 && self.links.link(&stat, to, name)? {
            return Ok(EntryCopy::Copied);
        }
        let made = match kind {
            FileType::RegularFile => self.file(&source, &stat, to, name)?,
            _ => self.node(&source, &stat, to, name)?,
        };
        if stat.st_nlink > 1 {
            self.links.remember(&stat, &fstat(&made)?, &[path, name.to_bytes()].concat());
        }
        Ok(EntryCopy::Copied)
    }

    fn file(
        &self,
        source: &OwnedFd,
        stat: &Stat,
        to: BorrowedFd<'_>,
        name: &CStr,
    ) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut source = File::from(open(descriptor_path(source), flags, Mode::empty())?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut target = File::from(openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
        // The kernel copies, and shares the blocks if the file system supports it.
        io::copy(&mut source, &mut target)?;
        attributes(source.as_fd(), target.as_fd(), stat, self.options)?;
        Ok(target.into())
    }

    /// Creates a symbolic link, a FIFO or a device, which system calls cannot create and open in one step.
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
            // Only the owner may use the node until it has its final mode.
            kind => mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev)?,
        }
        let made = open_strictly(to, name, PATH_ONLY, Mode::empty())?;
        let found = fstat(&made)?;
        // A node of the same type that was swapped in is harmless: it belongs to this tree, since hard links
        // across mounts are impossible.
        if FileType::from_raw_mode(found.st_mode) != kind || found.st_rdev != stat.st_rdev {
            return Err(Errno::STALE);
        }
        node_attributes(&made, stat, self.options)?;
        Ok(made)
    }
}

/// Files with more than one name, by device and inode.
struct HardLinks<'a> {
    /// Top directory of the copy.
    top: BorrowedFd<'a>,
    first: HashMap<(u64, u64), FirstName>,
}

/// The first copy of a file with more than one name.
struct FirstName {
    /// Path from the top. Another process may have replaced the file since.
    path: PathBuf,
    /// Device and inode of the copy.
    id: (u64, u64),
}

impl HardLinks<'_> {
    /// Remembers the copy of a file for the file's other hard links. If the path of the copy is too
    /// long, they are copied as separate files.
    fn remember(&mut self, source: &Stat, copy: &Stat, path: &[u8]) {
        if path.len() < MAX_PATH_BYTES {
            let path = PathBuf::from(OsStr::from_bytes(path));
            self.first.insert(id(source), FirstName { path, id: id(copy) });
        }
    }

    /// Links the copy of a file to another name, if the file was copied and the copy is still at
    /// its path. Returns whether it did.
    fn link(&self, source: &Stat, to: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
        let Some(first) = self.first.get(&id(source)) else { return Ok(false) };
        // Another process may have replaced the file, even by a link that leads out of the tree.
        let Ok(file) = open_strictly(self.top, &first.path, PATH_ONLY, Mode::empty()) else {
            return Ok(false);
        };
        if id(&fstat(&file)?) != first.id {
            return Ok(false);
        }
        match linkat(&file, c"", to, name, AtFlags::EMPTY_PATH) {
            // The error of the kernel if the process lacks CAP_DAC_READ_SEARCH.
            Err(Errno::NOENT) => {
                linkat(CWD, descriptor_path(&file), to, name, AtFlags::SYMLINK_FOLLOW)?;
            }
            done => done?,
        }
        Ok(true)
    }
}

/// Returns the identity of a file: device and inode.
fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Opens or creates a directory, in place of any other file of its name. Fails for a mount point.
fn make_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => unlinkat(parent, name, AtFlags::empty())?,
        done => return done,
    }
    mkdirat(parent, name, Mode::RWXU)?;
    open_strictly(parent, name, DIRECTORY, Mode::empty())
}

/// Returns whether a directory is opaque: overlays hide its content in lower layers.
pub fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    [OverlayAttributes::Trusted, OverlayAttributes::User].into_iter().any(|attributes| {
        let mut value = [0; 1];
        fgetxattr(directory, attributes.opaque_name(), &mut value) == Ok(1) && value == *b"y"
    })
}

#[cfg(test)]
mod tests;
