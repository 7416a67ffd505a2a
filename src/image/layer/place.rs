//! Where in the layer the next file is made: the chain of open directories that leads there.
//!
//! Entries of an archive mostly come directory by directory. With the directories on the way held
//! open, making a file takes one call that names only the file.

use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags, fchmod, fchown, fsetxattr, fstat,
    mkdirat, statat, unlinkat,
};
use rustix::io::Errno;

use super::attributes::set_time;
use crate::sys::beneath::{Beneath, open_as_root, open_strictly};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::mount::OverlayAttributes;

// Without `NOFOLLOW`, or a link would be told from a file no more.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The mode of directories that the archive has files in, but no entry for.
const DEFAULT_MODE: Mode = Mode::from_raw_mode(0o755);

/// An open directory.
pub struct Level {
    pub fd: OwnedFd,
    /// How much of the chain's path leads here.
    end: usize,
    /// The time to give it when nothing more is made in it for now.
    pub mtime: Option<(i64, u32)>,
    /// Whether files in it get its group.
    pub gives_group: bool,
}

/// The chain of open directories from the root of the layer.
pub struct OpenPath {
    root: Level,
    path: Vec<u8>,
    levels: Vec<Level>,
    /// Whose directories are that the archive has no entry for.
    owner: (Uid, Gid),
    /// How it is said that a directory hides what lower layers have of it.
    opaque: OverlayAttributes,
}

impl OpenPath {
    /// Starts at a new, empty directory. What the archive says no owner of is this owner's.
    pub fn new(
        path: &Path,
        (uid, gid): (u32, u32),
        opaque: OverlayAttributes,
    ) -> Result<Self, PathError> {
        let fd = Beneath::new(path)?.into_fd();
        let owner = (Uid::from_raw(uid), Gid::from_raw(gid));
        fchown(&fd, Some(owner.0), Some(owner.1)).at("change the owner of", path)?;
        let root = Level { fd, end: 0, mtime: None, gives_group: false };
        Ok(OpenPath { root, path: Vec::new(), levels: Vec::new(), owner, opaque })
    }

    pub(super) fn root(&mut self) -> &mut Level {
        &mut self.root
    }

    /// Returns the directory that was entered last.
    pub fn here(&mut self) -> &mut Level {
        self.levels.last_mut().unwrap_or(&mut self.root)
    }

    /// Returns whether that is the layer's own directory.
    pub fn is_at_root(&self) -> bool {
        self.levels.is_empty()
    }

    /// Goes to a directory, and makes it and those on the way if they are missing.
    pub fn enter(&mut self, path: &[u8]) -> Result<(), Errno> {
        let is_on_the_way = |level: &Level| {
            path.len() >= level.end
                && matches!(path.get(level.end), None | Some(b'/'))
                && path[..level.end] == self.path[..level.end]
        };
        let kept = self.levels.iter().take_while(|level| is_on_the_way(level)).count();
        self.leave_to(kept)?;
        while self.path.len() < path.len() {
            let start = self.path.len() + usize::from(!self.path.is_empty());
            let rest = &path[start..];
            let length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let end = start + length;
            let level = self.open_or_make(&path[..end], &rest[..length])?;
            self.push(&rest[..length], level);
        }
        Ok(())
    }

    /// Enters a directory below the current one.
    pub fn push(&mut self, name: &[u8], level: Level) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.levels.push(Level { end: self.path.len(), ..level });
    }

    /// Leaves all directories, and gives them their times.
    pub fn leave(mut self) -> Result<(), Errno> {
        self.leave_to(0)?;
        self.root.mtime.map_or(Ok(()), |mtime| set_time(&self.root.fd, mtime))
    }

    /// Opens the directory of a hard link's target.
    pub fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        open_as_root(self.root.fd.as_fd(), path, DIRECTORY, Mode::empty())
    }

    /// Makes a directory in the current one, and opens it. Returns whether it is new.
    ///
    /// What stands in its place goes, unless it is a directory. A whiteout there means that lower
    /// layers' content is hidden, and still does.
    pub fn make_directory(&mut self, name: &[u8]) -> Result<(Level, bool), Errno> {
        let here = self.here();
        let gives_group = here.gives_group;
        let parent = here.fd.as_fd();
        let mut is_opaque = false;
        let mut is_new = match mkdirat(parent, name, DEFAULT_MODE) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let fd = match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                is_opaque = is_whiteout(parent, name)?;
                unlinkat(parent, name, AtFlags::empty())?;
                mkdirat(parent, name, DEFAULT_MODE)?;
                is_new = true;
                open_strictly(parent, name, DIRECTORY, Mode::empty())?
            }
            result => result?,
        };
        if is_opaque {
            self.set_opaque(&fd)?;
        }
        Ok((Level { fd, end: 0, mtime: None, gives_group }, is_new))
    }

    /// Opens the next directory on the way, of which `path` is the whole path and `name` the last
    /// component.
    fn open_or_make(&mut self, path: &[u8], name: &[u8]) -> Result<Level, Errno> {
        let parent = self.here().fd.as_fd();
        let fd = match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
            Err(Errno::LOOP) => open_as_root(self.root.fd.as_fd(), path, DIRECTORY, Mode::empty())?,
            Err(Errno::NOTDIR) if !is_whiteout(parent, name)? => return Err(Errno::NOTDIR),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let (level, _) = self.make_directory(name)?;
                // Neither the umask nor the directory above decides what it is like.
                fchown(&level.fd, Some(self.owner.0), Some(self.owner.1))?;
                fchmod(&level.fd, DEFAULT_MODE)?;
                return Ok(Level { gives_group: false, ..level });
            }
            result => result?,
        };
        let stat = fstat(&fd)?;
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        let gives_group = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        Ok(Level { fd, end: 0, mtime: Some((stat.st_mtime, nanoseconds)), gives_group })
    }

    /// Makes overlays hide what lower layers have in the directory that was entered last.
    pub fn set_here_opaque(&mut self) -> Result<(), Errno> {
        let name = self.opaque.opaque();
        fsetxattr(&self.here().fd, name, b"y", XattrFlags::empty())
    }

    /// Does so in a directory.
    pub fn set_opaque(&self, directory: impl AsFd) -> Result<(), Errno> {
        fsetxattr(directory, self.opaque.opaque(), b"y", XattrFlags::empty())
    }

    fn leave_to(&mut self, kept: usize) -> Result<(), Errno> {
        while self.levels.len() > kept {
            let level = self.levels.pop().expect("there are more than are kept");
            if let Some(mtime) = level.mtime {
                set_time(&level.fd, mtime)?;
            }
        }
        self.path.truncate(self.levels.last().map_or(0, |level| level.end));
        Ok(())
    }
}

/// Returns whether overlayfs takes this for a whiteout.
fn is_whiteout(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0)
}
