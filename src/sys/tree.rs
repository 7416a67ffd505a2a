//! Copies of directory trees: owners, modes, times, extended attributes, hard links and devices.
//!
//! Nothing outside the two directories is reached: each directory is opened from the one above it,
//! and no symbolic link is followed, so a tree of a stranger can be copied while another one is
//! already there.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chownat, fchmod, fgetxattr, flistxattr, fsetxattr, linkat, mkdirat, mknodat, open, openat,
    readlinkat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::beneath::remove_all;
use super::fs::{PathContext, PathError};

/// What a tree is copied for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To have it again as it is.
    Plain,
    /// To lay it over what is there, as an overlay would: its whiteouts take away what is below.
    Layer,
}

/// Copies what is in a directory into another, and the attributes of the directory itself.
pub fn copy(from: &Path, to: &Path, purpose: Purpose) -> Result<(), PathError> {
    let source = open(from, DIRECTORY, Mode::empty()).at("open", from)?;
    let target = open(to, DIRECTORY, Mode::empty()).at("open", to)?;
    copy_between((source.as_fd(), from), (target.as_fd(), to), purpose)
}

/// Does the same for directories that are open; the paths are for messages.
pub fn copy_between(
    (from, from_path): (BorrowedFd<'_>, &Path),
    (to, to_path): (BorrowedFd<'_>, &Path),
    purpose: Purpose,
) -> Result<(), PathError> {
    let stat = rustix::fs::fstat(from).at("look at", from_path)?;
    let mut copier = Copier { top: to, links: HashMap::new(), purpose };
    copier.directory(from, to, Path::new("")).map_err(|error| error.at(to_path))?;
    attributes(from, to, &stat, purpose).at("copy the attributes of", from_path)
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Copier<'a> {
    top: BorrowedFd<'a>,
    /// Files with more than one name, by device and inode: the first name, from the top.
    links: HashMap<(u64, u64), PathBuf>,
    purpose: Purpose,
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
        if self.purpose == Purpose::Layer && is_opaque(from) {
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
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Socket {
            return Ok(());
        }
        if kind == FileType::Directory {
            let source = openat(from, name, DIRECTORY, Mode::empty())?;
            let target = make_directory(to, name)?;
            self.directory(source.as_fd(), target.as_fd(), path).map_err(EntryError::Below)?;
            return Ok(attributes(source.as_fd(), target.as_fd(), &stat, self.purpose)?);
        }
        remove_all(to, name.to_bytes())?;
        if self.purpose == Purpose::Layer && kind == FileType::CharacterDevice && stat.st_rdev == 0
        {
            return Ok(());
        }
        if stat.st_nlink > 1 {
            let file = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&file) {
                return Ok(linkat(self.top, first, to, name, AtFlags::empty())?);
            }
            self.links.insert(file, path.to_owned());
        }
        match kind {
            FileType::RegularFile => return Ok(self.file(from, to, name, &stat)?),
            FileType::Symlink => symlinkat(readlinkat(from, name, Vec::new())?, to, name)?,
            kind => mknodat(to, name, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?,
        }
        let owner = owner(&stat);
        chownat(to, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        if kind != FileType::Symlink {
            // The umask took bits away, and a changed owner set-user-ID.
            rustix::fs::chmodat(to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
        }
        Ok(utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn file(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
    ) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut source = File::from(openat(from, name, flags, Mode::empty())?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut target = File::from(openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
        // The kernel copies; on a file system that can, it shares the blocks.
        io::copy(&mut source, &mut target)?;
        Ok(attributes(source.as_fd(), target.as_fd(), stat, self.purpose)?)
    }
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

/// Opens a directory, which is made in place of whatever else has its name.
fn make_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => unlinkat(parent, name, AtFlags::empty())?,
        done => return done,
    }
    mkdirat(parent, name, Mode::RWXU)?;
    openat(parent, name, DIRECTORY, Mode::empty())
}

fn empty(directory: BorrowedFd<'_>) -> io::Result<()> {
    names(directory)?.iter().try_for_each(|name| remove_all(directory, name.to_bytes()))
}

/// The attributes by which overlays, of root and of others, know a directory that hides the one
/// below it.
const OPAQUE: [&CStr; 2] = [c"trusted.overlay.opaque", c"user.overlay.opaque"];
/// The attributes that mean something to overlays.
const OVERLAY: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Returns whether overlays hide what lower layers have in a directory.
pub fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    OPAQUE.iter().any(|name| {
        let mut value = [0; 1];
        fgetxattr(directory, *name, &mut value) == Ok(1) && value == *b"y"
    })
}

/// Gives a file or directory the owner, mode, extended attributes and times of another.
fn attributes(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    stat: &Stat,
    purpose: Purpose,
) -> Result<(), Errno> {
    let (uid, gid) = owner(stat);
    rustix::fs::fchown(to, uid, gid)?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
    let mut list = vec![0; 64 << 10];
    let length = match flistxattr(from, &mut list[..]) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let mut value = vec![0; if length > 0 { 64 << 10 } else { 0 }];
    for name in list[..length].split_inclusive(|&byte| byte == 0) {
        if purpose == Purpose::Layer && OVERLAY.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let length = fgetxattr(from, name, &mut value[..])?;
        match fsetxattr(to, name, &value[..length], XattrFlags::empty()) {
            // What the file system there cannot keep is lost, as it is in an image.
            Err(Errno::NOTSUP | Errno::PERM) => {}
            done => done?,
        }
    }
    rustix::fs::futimens(to, &times(stat))
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.try_into().unwrap_or_default(),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

#[cfg(test)]
mod tests;
