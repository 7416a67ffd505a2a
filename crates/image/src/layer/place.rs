//! The chain of open directories to where the next file is created.
//!
//! Entries of an archive mostly come directory by directory. With the directories of the path held
//! open, creating a file takes one call with the file's name.

use std::path::Path;

use oci_hooks_files::beneath::{ConfinedRoot, open_as_root, open_strictly};
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::mount::OverlayAttributes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags, fchmod, fchown, fsetxattr, fstat,
    mkdirat, statat, unlinkat,
};
use rustix::io::Errno;

use super::attributes::set_time;

// Without `NOFOLLOW`, with which links could not be told from files.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Mode of directories that the archive has files in, but no entry for.
const DEFAULT_MODE: Mode = Mode::from_raw_mode(0o755);

/// An open directory.
pub struct DirectoryLevel {
    pub fd: OwnedFd,
    /// Length in bytes of the path from the layer's root to this directory.
    end: usize,
    /// Modification time to set when the directory is left.
    pub mtime: Option<(i64, u32)>,
    /// If set, files in the directory get its group.
    pub has_setgid: bool,
}

/// The chain of open directories from the root of the layer.
pub struct OpenPath {
    root: DirectoryLevel,
    path: Vec<u8>,
    levels: Vec<DirectoryLevel>,
    /// Owner of directories that the archive has no entry for.
    owner: (Uid, Gid),
    /// Attributes that make a directory opaque.
    opaque: OverlayAttributes,
}

impl OpenPath {
    /// Starts at a new, empty directory. Directories without an entry get this owner.
    pub fn new(
        path: &Path,
        (uid, gid): (u32, u32),
        opaque: OverlayAttributes,
    ) -> Result<Self, PathError> {
        let fd = ConfinedRoot::new(path)?.into_fd();
        let owner = (Uid::from_raw(uid), Gid::from_raw(gid));
        fchown(&fd, Some(owner.0), Some(owner.1)).with_path("change the owner of", path)?;
        let root = DirectoryLevel { fd, end: 0, mtime: None, has_setgid: false };
        Ok(OpenPath { root, path: Vec::new(), levels: Vec::new(), owner, opaque })
    }

    pub(super) fn root(&mut self) -> &mut DirectoryLevel {
        &mut self.root
    }

    /// Returns the current directory, which was entered last.
    pub fn current_level(&mut self) -> &mut DirectoryLevel {
        self.levels.last_mut().unwrap_or(&mut self.root)
    }

    /// Returns whether the current directory is the layer's root.
    pub fn is_at_root(&self) -> bool {
        self.levels.is_empty()
    }

    /// Enters a directory, and creates it and its parents if they are missing.
    pub fn enter(&mut self, path: &[u8]) -> Result<(), Errno> {
        let is_on_the_way = |level: &DirectoryLevel| {
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
    pub fn push(&mut self, name: &[u8], level: DirectoryLevel) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.levels.push(DirectoryLevel { end: self.path.len(), ..level });
    }

    /// Leaves all directories, and sets their times.
    pub fn leave(mut self) -> Result<(), Errno> {
        self.leave_to(0)?;
        self.root.mtime.map_or(Ok(()), |mtime| set_time(&self.root.fd, mtime))
    }

    /// Opens a directory by its path from the layer's root, for the target of a hard link.
    pub fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        open_as_root(self.root.fd.as_fd(), path, DIRECTORY, Mode::empty())
    }

    /// Creates a directory in the current one, and opens it. Returns whether it is new.
    ///
    /// An existing file is replaced, an existing directory is not. If the file is a whiteout, the
    /// directory becomes opaque, so that lower layers stay hidden.
    pub fn make_directory(&mut self, name: &[u8]) -> Result<(DirectoryLevel, bool), Errno> {
        let here = self.current_level();
        let has_setgid = here.has_setgid;
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
        Ok((DirectoryLevel { fd, end: 0, mtime: None, has_setgid }, is_new))
    }

    /// Opens the next directory of the chain, whose whole path is `path` and whose last component
    /// is `name`.
    fn open_or_make(&mut self, path: &[u8], name: &[u8]) -> Result<DirectoryLevel, Errno> {
        let parent = self.current_level().fd.as_fd();
        let fd = match open_strictly(parent, name, DIRECTORY, Mode::empty()) {
            Err(Errno::LOOP) => open_as_root(self.root.fd.as_fd(), path, DIRECTORY, Mode::empty())?,
            Err(Errno::NOTDIR) if !is_whiteout(parent, name)? => return Err(Errno::NOTDIR),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let (level, _) = self.make_directory(name)?;
                // Owner and mode must not depend on the umask and the parent directory.
                fchown(&level.fd, Some(self.owner.0), Some(self.owner.1))?;
                fchmod(&level.fd, DEFAULT_MODE)?;
                return Ok(DirectoryLevel { has_setgid: false, ..level });
            }
            result => result?,
        };
        let stat = fstat(&fd)?;
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        let has_setgid = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        Ok(DirectoryLevel { fd, end: 0, mtime: Some((stat.st_mtime, nanoseconds)), has_setgid })
    }

    /// Makes the current directory opaque: it hides the content of lower layers.
    pub fn set_here_opaque(&mut self) -> Result<(), Errno> {
        let opaque = self.opaque;
        set_opaque(&self.current_level().fd, opaque)
    }

    /// Makes a directory opaque.
    pub fn set_opaque(&self, directory: impl AsFd) -> Result<(), Errno> {
        set_opaque(directory, self.opaque)
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

/// Makes a directory opaque, also for overlays that a container mounts in its user namespace.
fn set_opaque(directory: impl AsFd, attributes: OverlayAttributes) -> Result<(), Errno> {
    let set = |attributes: OverlayAttributes| {
        fsetxattr(&directory, attributes.opaque_name(), b"y", XattrFlags::empty())
    };
    set(attributes)?;
    match set(OverlayAttributes::User) {
        // A tmpfs before Linux 6.6.
        Err(Errno::OPNOTSUPP) => Ok(()),
        set => set,
    }
}

/// Returns whether overlayfs treats a file as a whiteout.
fn is_whiteout(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0)
}
