//! Replacing a file as a whole: it has its old content or its new one, whatever happens.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, fstat, fsync, openat,
    readlinkat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use tracing::debug;

use super::read::{FileKind, READ_FLAGS, ReadError, irregular, read_opened};
use super::{PathContext as _, PathError, Who, own_links, random_u64};

/// How many symbolic links in a row are followed, as in the kernel.
pub(super) const MAX_SYMLINKS: usize = 40;

/// A file by its name in a directory that is held open: who swaps the directory, or a symbolic
/// link on the way to it, between reading and writing does not redirect the writing.
///
/// ```
/// use oci_hooks::sys::fs::{Expected, FileAt, ReplaceOptions, Symlinks};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("config.json");
/// # std::fs::write(&path, "old")?;
/// let file = FileAt::open(&path, Symlinks::Refuse)?;
/// let (content, id) = file.read(1 << 20)?;
/// let options = ReplaceOptions { expected: Expected::Unchanged(id), ..Default::default() };
/// file.replace(&[&content, &b"er"[..]].concat(), &options)?;
/// assert_eq!(std::fs::read(&path)?, b"older");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileAt {
    directory: OwnedFd,
    name: OsString,
    /// As the caller named it, for messages.
    path: PathBuf,
}

/// What to do if the last component of a path is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Take the file it points to, and leave the link as it is. Links of others than root and this
    /// user are refused, here and in the rest of the path.
    Follow,
    Refuse,
}

/// How to replace a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceOptions {
    /// What has to be there for the replacement to take place.
    pub expected: Expected,
    /// The mode of the new file; by default that of the old one, or `0o644` if there was none.
    pub mode: Option<u32>,
    /// User and group of the new file; by default those of the old one, or of the process.
    pub owner: Option<(u32, u32)>,
    /// Whether the content must have reached the disk.
    pub durability: Durability,
}

/// What has to be there for a replacement to take place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// A regular file or nothing.
    #[default]
    Anything,
    /// Nothing. The kernel checks it in the same moment.
    Absent,
    /// The file as it was read. It is checked just before the replacement; of two programs that
    /// replace a file within the same microseconds one can still undo the other.
    Unchanged(FileId),
}

/// Whether new content must be on the disk before the old one goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It survives a power cut.
    #[default]
    Synced,
    /// A power cut may lose both; for files that do not outlive a boot.
    Unsynced,
}

/// Which file this is and which state it is in: device, inode, size, and the times of its last
/// modification and status change.
#[derive(Clone, Copy, Debug)]
pub struct FileId(Stat);

impl PartialEq for FileId {
    fn eq(&self, other: &Self) -> bool {
        let state = |stat: &Stat| (stat.st_dev, stat.st_ino, stat.st_size);
        let modified = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
        let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
        let (a, b) = (&self.0, &other.0);
        state(a) == state(b) && modified(a) == modified(b) && changed(a) == changed(b)
    }
}

impl Eq for FileId {}

/// Why a file could not be replaced. It has its old content, except after a [`PathError`] whose
/// action is `sync the directory of`: then it has the new one, which may not survive a power cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// The path has no file name, as `/` and `..` have none.
    #[error("{} does not name a file", path.display())]
    NoFileName { path: PathBuf },
    /// What is there is not a regular file.
    #[error("{} is a {kind}, not a file", path.display())]
    NotAFile { path: PathBuf, kind: FileKind },
    /// Somebody else decides what the path leads to.
    #[error(
        "{} is a symbolic link of {}, who could have it lead to any file: name the file that is \
         meant, or remove the link", path.display(), Who::User(*owner).named()
    )]
    ForeignLink { path: PathBuf, owner: u32 },
    /// The file is not as it was expected to be any more.
    #[error("{} was changed by someone else since it was read", path.display())]
    Changed { path: PathBuf },
}

impl FileAt {
    /// Opens the directory a file is in. The file itself need not exist.
    pub fn open(path: &Path, symlinks: Symlinks) -> Result<Self, ReplaceError> {
        let no_name = || ReplaceError::NoFileName { path: path.to_owned() };
        let (directory, name) = split(path).ok_or_else(no_name)?;
        match symlinks {
            Symlinks::Follow => {
                let (above, name) = own_links::find(path)?;
                let directory =
                    open_directory(&above, Path::new(".")).at("open the directory of", path)?;
                Ok(FileAt { directory, name, path: path.to_owned() })
            }
            Symlinks::Refuse => {
                let directory = open_directory(CWD, directory).at("open the directory of", path)?;
                Self::in_directory(directory, name, path)
            }
        }
    }

    /// Returns a file by its name in a directory that is open, which may be no symbolic link; the path
    /// is for messages.
    pub fn in_directory(
        directory: OwnedFd,
        name: &OsStr,
        path: &Path,
    ) -> Result<Self, ReplaceError> {
        let name = name.to_owned();
        match readlinkat(&directory, &name, Vec::new()) {
            // Not a link, or nothing at all.
            Err(Errno::INVAL | Errno::NOENT) => {
                Ok(FileAt { directory, name, path: path.to_owned() })
            }
            Err(error) => Err(PathError::new("open", path, error).into()),
            Ok(_) => {
                let kind = FileKind::Symlink;
                Err(ReplaceError::NotAFile { path: path.to_owned(), kind })
            }
        }
    }

    /// Returns the content of the file, of at most `limit_bytes` bytes, and what to recognise it
    /// by when it is to be replaced.
    pub fn read(&self, limit_bytes: u64) -> Result<(Vec<u8>, FileId), ReadError> {
        let flags = READ_FLAGS | OFlags::NOFOLLOW;
        let file = retry_on_intr(|| openat(&self.directory, &self.name, flags, Mode::empty()))
            .at("open", &self.path)?;
        let (content, stat) = read_opened(&file, &self.path, limit_bytes)?;
        Ok((content, FileId(stat)))
    }

    /// Replaces the file, or makes it.
    ///
    /// Readers see the old file or the new one. Mode and owner are kept unless the options say
    /// otherwise; access control lists and other extended attributes are not, and another hard
    /// link to the old file keeps the old content. Nothing is left behind on an error.
    pub fn replace(&self, content: &[u8], options: &ReplaceOptions) -> Result<(), ReplaceError> {
        let old = self.check(options.expected)?;
        let owner = options.owner.or(old.map(|old| (old.st_uid, old.st_gid)));
        let mode = options.mode.or(old.map(|old| old.st_mode)).unwrap_or(0o644);

        let mut new = Temporary::create(&self.directory).at("create a file beside", &self.path)?;
        new.write(content).at("write a file beside", &self.path)?;
        // The owner first: changing it takes the set-user-ID bit away.
        new.set_owner(owner).at("set the owner of", &self.path)?;
        fchmod(&new.file, Mode::from_raw_mode(mode & 0o7777)).at("set the mode of", &self.path)?;
        if options.durability == Durability::Synced {
            fsync(&new.file).at("sync a file beside", &self.path)?;
        }

        self.check(options.expected)?;
        match options.expected {
            Expected::Absent => new.name(&self.name, RenameFlags::NOREPLACE),
            Expected::Anything | Expected::Unchanged(_) => {
                new.name(&self.name, RenameFlags::empty())
            }
        }
        .at("replace", &self.path)?;
        if options.durability == Durability::Synced {
            match fsync(&self.directory) {
                // Some file systems cannot do that and do not need it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => {
                    return Err(PathError::new("sync the directory of", &self.path, error).into());
                }
            }
        }
        Ok(())
    }

    /// Returns the status of the file that is there, if it may be replaced.
    fn check(&self, expected: Expected) -> Result<Option<Stat>, ReplaceError> {
        let stat = match statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => {
                return Err(PathError::new("read the status of", &self.path, error).into());
            }
        };
        match expected {
            Expected::Absent if stat.is_some() => {
                return Err(PathError::new("create", &self.path, Errno::EXIST).into());
            }
            Expected::Unchanged(id) if stat.map(FileId) != Some(id) => {
                return Err(ReplaceError::Changed { path: self.path.clone() });
            }
            Expected::Anything | Expected::Absent | Expected::Unchanged(_) => {}
        }
        match stat.as_ref().and_then(irregular) {
            Some(kind) => Err(ReplaceError::NotAFile { path: self.path.clone(), kind }),
            None => Ok(stat),
        }
    }
}

/// Splits a path into the directory and the name in it.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some((directory.unwrap_or(Path::new(".")), path.file_name()?))
}

fn open_directory(beneath: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| openat(&beneath, path, flags, Mode::empty()))
}

/// A new file under a name of its own, removed when dropped without having got its real one.
struct Temporary<'a> {
    directory: &'a OwnedFd,
    file: OwnedFd,
    /// None once it has its real name.
    name: Option<String>,
}

impl<'a> Temporary<'a> {
    fn create(directory: &'a OwnedFd) -> rustix::io::Result<Self> {
        // Does not end in `.json`: in a directory of hooks nobody may take it for one.
        let name = format!(".oci-hooks-{:016x}.tmp", random_u64());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Temporary { directory, file, name: Some(name) })
    }

    fn write(&self, mut content: &[u8]) -> rustix::io::Result<()> {
        while !content.is_empty() {
            let written = retry_on_intr(|| rustix::io::write(&self.file, content))?;
            content = &content[written..];
        }
        Ok(())
    }

    /// Changes the owner if it has to: only root may give a file away.
    fn set_owner(&self, owner: Option<(u32, u32)>) -> rustix::io::Result<()> {
        let Some((user, group)) = owner else { return Ok(()) };
        let stat = fstat(&self.file)?;
        if (stat.st_uid, stat.st_gid) == (user, group) {
            return Ok(());
        }
        fchown(&self.file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
    }

    /// Gives the file its real name.
    fn name(&mut self, name: &OsStr, flags: RenameFlags) -> rustix::io::Result<()> {
        let Some(old) = &self.name else { return Ok(()) };
        debug!(from = ?old, to = ?name, "rename");
        if flags.is_empty() {
            renameat(self.directory, old, self.directory, name)?;
        } else {
            renameat_with(self.directory, old, self.directory, name, flags)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // There is an error on its way already, and nothing more to do.
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests;
