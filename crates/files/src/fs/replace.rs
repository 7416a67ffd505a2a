//! Atomic replacement of files: a file has either its old content or its new one.
//!
//! The new file has no name while it is written (`O_TMPFILE`), so that a killed process leaves nothing behind. To
//! replace another file it needs a name between two system calls: a process that is killed between them leaves an
//! unlocked file, which the next replacement in that directory removes. Without `O_TMPFILE`, such files stay.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod,
    fchown, flock, fstat, fsync, linkat, openat, readlinkat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use tracing::debug;

use super::super::beneath::descriptor_path;
use super::read::{FileKind, READ_FLAGS, ReadError, irregular_kind, read_opened};
use super::{AccessSubject, PathContext as _, PathError, own_links, random_u64};

/// Maximum number of symbolic links that are followed in a path, as in the kernel.
pub const MAX_SYMLINKS: usize = 40;

/// A file by its name in a directory that is held open: swapping the directory, or a symbolic
/// link on the way to it, between reading and writing does not redirect the write.
///
/// ```
/// use oci_hooks_files::fs::{ExpectedFile, FileAt, ReplaceOptions, SymlinkPolicy};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("config.json");
/// # std::fs::write(&path, "old")?;
/// let file = FileAt::open(&path, SymlinkPolicy::Refuse)?;
/// let (content, id) = file.read(1 << 20)?;
/// let options = ReplaceOptions { expected: ExpectedFile::Unchanged(id), ..Default::default() };
/// file.replace(&[&content, &b"er"[..]].concat(), &options)?;
/// assert_eq!(std::fs::read(&path)?, b"older");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileAt {
    directory: OwnedFd,
    name: OsString,
    /// Path given by the caller, for messages.
    path: PathBuf,
}

/// Treatment of a path whose last component is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// Use the target of the link, and keep the link. Links of other users than root and this
    /// user are rejected, here and in the rest of the path.
    Follow,
    Refuse,
}

/// Options of replacing a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceOptions {
    /// Condition on the old file.
    pub expected: ExpectedFile,
    /// The mode of the new file; by default that of the old file, or `0o644` without an old file.
    pub mode: Option<u32>,
    /// User and group of the new file; by default those of the old one, or of the process.
    pub owner: Option<(u32, u32)>,
    pub durability: Durability,
}

/// Condition on the old file for a replacement to take place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedFile {
    /// The file is a regular file or does not exist.
    #[default]
    Anything,
    /// The file does not exist. The kernel checks this atomically.
    Absent,
    /// The file has not changed since it was read. This is checked just before the replacement; of two
    /// programs that replace a file within the same microseconds one can still undo the other.
    Unchanged(FileId),
    /// The file is a regular file, a symbolic link, which is replaced itself, or does not exist.
    FileOrLink,
}

/// Guarantee that new content is on disk before the old content is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The new content survives a power failure.
    #[default]
    Synced,
    /// A power failure may lose old and new content; for files that do not outlive a boot.
    Unsynced,
}

/// Identity and state of a file: device, inode, size, and the times of its last modification and
/// status change.
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

/// Errors of replacing a file. The file has its old content, except after a [`PathError`] whose
/// action is `sync the directory of`: then it has the new content, which may not survive a power failure.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// The path has no file name, as `/` and `..` have none.
    #[error("{} does not name a file", path.display())]
    NoFileName { path: PathBuf },
    /// The path is not a regular file.
    #[error("{} is a {kind}, not a file", path.display())]
    NotAFile { path: PathBuf, kind: FileKind },
    /// Another user owns a symbolic link in the path.
    #[error(
        "{} is a symlink of {}, who can point it at any file: name the target file, or remove the \
         symlink", path.display(), AccessSubject::User(*owner).display_name()
    )]
    ForeignLink { path: PathBuf, owner: u32 },
    /// The file has changed since it was read.
    #[error("{} was changed by another process since it was read", path.display())]
    Changed { path: PathBuf },
}

impl FileAt {
    /// Opens the directory of a file. The file itself need not exist.
    pub fn open(path: &Path, symlinks: SymlinkPolicy) -> Result<Self, ReplaceError> {
        let no_name = || ReplaceError::NoFileName { path: path.to_owned() };
        let (directory, name) = split(path).ok_or_else(no_name)?;
        match symlinks {
            SymlinkPolicy::Follow => {
                let (above, name) = own_links::find(path)?;
                let directory = open_directory(&above, Path::new("."))
                    .with_path("open the directory of", path)?;
                Ok(FileAt { directory, name, path: path.to_owned() })
            }
            SymlinkPolicy::Refuse => {
                let directory =
                    open_directory(CWD, directory).with_path("open the directory of", path)?;
                match readlinkat(&directory, name, Vec::new()) {
                    // No symbolic link, or missing.
                    Err(Errno::INVAL | Errno::NOENT) => {
                        Ok(Self::in_directory(directory, name, path))
                    }
                    Err(error) => Err(PathError::new("open", path, error).into()),
                    Ok(_) => {
                        let kind = FileKind::Symlink;
                        Err(ReplaceError::NotAFile { path: path.to_owned(), kind })
                    }
                }
            }
        }
    }

    /// Returns a file by its name in an open directory. A symbolic link is not followed. The path is for
    /// messages.
    pub fn in_directory(directory: OwnedFd, name: &OsStr, path: &Path) -> Self {
        FileAt { directory, name: name.to_owned(), path: path.to_owned() }
    }

    /// Returns the content of the file, of at most `limit_bytes` bytes, and its identity for
    /// [`ExpectedFile::Unchanged`].
    pub fn read(&self, limit_bytes: u64) -> Result<(Vec<u8>, FileId), ReadError> {
        let flags = READ_FLAGS | OFlags::NOFOLLOW;
        let file = retry_on_intr(|| openat(&self.directory, &self.name, flags, Mode::empty()))
            .with_path("open", &self.path)?;
        let (content, stat) = read_opened(&file, &self.path, limit_bytes)?;
        Ok((content, FileId(stat)))
    }

    /// Replaces or creates the file.
    ///
    /// Readers see the old file or the new one. Mode and owner are kept unless the options say
    /// otherwise; access control lists and other extended attributes are not, and another hard
    /// link to the old file keeps the old content. Nothing is left behind on an error. Temporary files
    /// that killed replacements left in this directory are removed.
    pub fn replace(&self, content: &[u8], options: &ReplaceOptions) -> Result<(), ReplaceError> {
        let old = self.check(options.expected)?;
        let owner = options.owner.or(old.map(|old| (old.st_uid, old.st_gid)));
        let mode = options.mode.or(old.map(|old| old.st_mode)).unwrap_or(0o644);

        let mut new = TemporaryFile::create(&self.directory)
            .with_path("create a temporary file in the directory of", &self.path)?;
        new.write(content).with_path("write the new content of", &self.path)?;
        // The owner first: changing it clears the set-user-ID bit.
        new.set_owner(owner).with_path("set the owner of", &self.path)?;
        fchmod(&new.file, Mode::from_raw_mode(mode & 0o7777))
            .with_path("set the mode of", &self.path)?;
        if options.durability == Durability::Synced {
            fsync(&new.file).with_path("sync the new content of", &self.path)?;
        }

        self.check(options.expected)?;
        match options.expected {
            ExpectedFile::Absent => new.name(&self.name, RenameFlags::NOREPLACE),
            ExpectedFile::Anything | ExpectedFile::Unchanged(_) | ExpectedFile::FileOrLink => {
                new.name(&self.name, RenameFlags::empty())
            }
        }
        .with_path("replace", &self.path)?;
        if options.durability == Durability::Synced {
            match fsync(&self.directory) {
                // Some file systems cannot sync a directory and do not need it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => {
                    return Err(PathError::new("sync the directory of", &self.path, error).into());
                }
            }
        }
        Ok(())
    }

    /// Returns the status of the existing file, or an error if it may not be replaced.
    fn check(&self, expected: ExpectedFile) -> Result<Option<Stat>, ReplaceError> {
        let stat = match statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => {
                return Err(PathError::new("read the status of", &self.path, error).into());
            }
        };
        match expected {
            ExpectedFile::Absent if stat.is_some() => {
                return Err(PathError::new("create", &self.path, Errno::EXIST).into());
            }
            ExpectedFile::Unchanged(id) if stat.map(FileId) != Some(id) => {
                return Err(ReplaceError::Changed { path: self.path.clone() });
            }
            _ => {}
        }
        match stat.as_ref().and_then(irregular_kind) {
            // Mode and owner of a link are not those of a file.
            Some(FileKind::Symlink) if expected == ExpectedFile::FileOrLink => Ok(None),
            Some(kind) => Err(ReplaceError::NotAFile { path: self.path.clone(), kind }),
            None => Ok(stat),
        }
    }
}

/// Splits a path into its parent directory and its file name.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some((directory.unwrap_or(Path::new(".")), path.file_name()?))
}

fn open_directory(beneath: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| openat(&beneath, path, flags, Mode::empty()))
}

/// A new file, removed when dropped before it got its final name.
struct TemporaryFile<'a> {
    directory: &'a OwnedFd,
    file: OwnedFd,
    /// Temporary name; `None` if the file has no name yet, or its final name.
    name: Option<String>,
}

impl<'a> TemporaryFile<'a> {
    fn create(directory: &'a OwnedFd) -> rustix::io::Result<Self> {
        Self::create_unnamed(directory).or_else(|_| Self::create_named(directory))
    }

    /// Creates a file without a name (`O_TMPFILE`), if the file system supports it; the name is set through `/proc`.
    fn create_unnamed(directory: &'a OwnedFd) -> rustix::io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = openat(directory, ".", flags, Mode::RUSR | Mode::WUSR)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        statat(CWD, descriptor_path(&file), AtFlags::empty())?;
        Ok(TemporaryFile { directory, file, name: None })
    }

    fn create_named(directory: &'a OwnedFd) -> rustix::io::Result<Self> {
        // Does not end in `.json`, so that no program loads it from a hook directory.
        let name = format!(".oci-hooks-{:016x}.tmp", random_u64());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(TemporaryFile { directory, file, name: Some(name) })
    }

    fn write(&self, mut content: &[u8]) -> rustix::io::Result<()> {
        while !content.is_empty() {
            let written = retry_on_intr(|| rustix::io::write(&self.file, content))?;
            content = &content[written..];
        }
        Ok(())
    }

    /// Changes the owner only if it differs: only root may give a file away.
    fn set_owner(&self, owner: Option<(u32, u32)>) -> rustix::io::Result<()> {
        let Some((user, group)) = owner else { return Ok(()) };
        let stat = fstat(&self.file)?;
        if (stat.st_uid, stat.st_gid) == (user, group) {
            return Ok(());
        }
        fchown(&self.file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
    }

    /// Gives the file its final name.
    fn name(&mut self, name: &OsStr, flags: RenameFlags) -> rustix::io::Result<()> {
        let may_replace = flags.is_empty();
        let old = match &self.name {
            Some(old) => old,
            None => match self.link(name) {
                Err(Errno::EXIST) if may_replace => {
                    sweep(self.directory);
                    let name = format!("{LINK_PREFIX}{:016x}{LINK_SUFFIX}", random_u64());
                    self.link(OsStr::new(&name))?;
                    self.name.insert(name)
                }
                linked => return linked,
            },
        };
        debug!(from = ?old, to = ?name, "rename");
        if may_replace {
            renameat(self.directory, old, self.directory, name)?;
        } else {
            renameat_with(self.directory, old, self.directory, name, flags)?;
        }
        self.name = None;
        Ok(())
    }

    fn link(&self, name: &OsStr) -> rustix::io::Result<()> {
        debug!(?name, "link");
        linkat(CWD, descriptor_path(&self.file), self.directory, name, AtFlags::SYMLINK_FOLLOW)
    }
}

/// Prefix of the temporary names of new files. A file with such a name is locked until it replaces
/// another.
const LINK_PREFIX: &str = ".oci-hooks-";
/// Suffix of the temporary names of new files.
const LINK_SUFFIX: &str = ".new";

/// Removes temporary files that killed replacements left; errors are ignored.
fn sweep(directory: &OwnedFd) {
    for entry in Dir::read_from(directory).into_iter().flatten().flatten() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if is_link_name(name) && is_left_behind(directory, name).unwrap_or(false) {
            debug!(?name, "remove the temporary file of a killed replacement");
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
    }
}

fn is_link_name(name: &OsStr) -> bool {
    let digits =
        name.to_str().and_then(|name| name.strip_prefix(LINK_PREFIX)?.strip_suffix(LINK_SUFFIX));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns whether a file belongs to this user (any user for root) and is unlocked. Other users may write to the
/// directory: only regular files are opened, and only the name in this directory is removed.
fn is_left_behind(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<bool> {
    let user = geteuid();
    let is_ours = |stat: &Stat| {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file && (user.is_root() || stat.st_uid == user.as_raw())
    };
    if !is_ours(&statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?) {
        return Ok(false);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(is_ours(&fstat(&file)?))
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Another error is being returned already.
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn replace(path: &Path, symlinks: SymlinkPolicy, content: &str) -> Result<(), ReplaceError> {
        FileAt::open(path, symlinks)?.replace(content.as_bytes(), &ReplaceOptions::default())
    }

    /// Returns the names in a directory, sorted.
    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn system_error(result: Result<(), ReplaceError>) -> ErrorKind {
        match result {
            Err(ReplaceError::Path(error)) => error.source.kind(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn file_is_created_with_the_given_mode_whatever_the_umask() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        let file = FileAt::open(&path, SymlinkPolicy::Refuse).unwrap();
        file.replace(b"one", &ReplaceOptions::default()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);

        let options = ReplaceOptions { mode: Some(0o666), ..Default::default() };
        file.replace(b"two", &options).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o666);
        assert_eq!(names(directory.path()), ["new"]);
    }

    #[test]
    fn mode_and_owner_of_the_old_file_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old").unwrap();
        // Only root can give a file away.
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), Some(54321)).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        let old = fs::metadata(&path).unwrap();

        replace(&path, SymlinkPolicy::Refuse, "new").unwrap();
        let new = fs::metadata(&path).unwrap();
        assert_eq!((new.uid(), new.gid(), new.mode()), (old.uid(), old.gid(), old.mode()));
        assert_ne!(new.ino(), old.ino());

        if geteuid().is_root() {
            let options = ReplaceOptions { owner: Some((1, 2)), ..Default::default() };
            FileAt::open(&path, SymlinkPolicy::Refuse).unwrap().replace(b"new", &options).unwrap();
            let new = fs::metadata(&path).unwrap();
            assert_eq!((new.uid(), new.gid()), (1, 2));
        }
    }

    #[test]
    fn path_without_directory_is_in_the_working_directory() {
        assert_eq!(split(Path::new("file")), Some((Path::new("."), OsStr::new("file"))));
        for path in ["/", "..", "", "a/.."] {
            let error = FileAt::open(Path::new(path), SymlinkPolicy::Follow).unwrap_err();
            assert!(matches!(error, ReplaceError::NoFileName { .. }), "{path:?}: {error}");
        }
    }

    #[test]
    fn symbolic_link_is_rejected_or_its_target_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        fs::write(b.join("file"), "old").unwrap();
        // Relative, through another link, and absolute.
        symlink("../b/link", a.join("link")).unwrap();
        symlink(b.join("file"), b.join("link")).unwrap();

        let error = replace(&a.join("link"), SymlinkPolicy::Refuse, "new").unwrap_err();
        assert!(matches!(error, ReplaceError::NotAFile { kind: FileKind::Symlink, .. }), "{error}");
        assert_eq!(fs::read(b.join("file")).unwrap(), b"old");

        replace(&a.join("link"), SymlinkPolicy::Follow, "new").unwrap();
        assert_eq!(fs::read(b.join("file")).unwrap(), b"new");
        assert!(a.join("link").is_symlink() && b.join("link").is_symlink());
        assert!(!b.join("file").is_symlink());
        assert_eq!(
            (names(&a), names(&b)),
            (vec!["link".into()], vec!["file".into(), "link".into()])
        );

        symlink("loop", a.join("loop")).unwrap();
        let error = replace(&a.join("loop"), SymlinkPolicy::Follow, "new").unwrap_err();
        assert_eq!(error.to_string(), format!("cannot open {}", a.join("loop").display()));
    }

    #[test]
    fn special_files_are_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("directory")).unwrap();
        let error =
            replace(&directory.path().join("directory"), SymlinkPolicy::Refuse, "").unwrap_err();
        assert!(error.to_string().ends_with("is a directory, not a file"), "{error}");
        let error = replace(Path::new("/dev/null"), SymlinkPolicy::Follow, "").unwrap_err();
        assert!(error.to_string().ends_with("is a character device, not a file"), "{error}");
        assert_eq!(names(directory.path()), ["directory"]);
    }

    #[test]
    fn file_that_must_be_absent_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = FileAt::open(&path, SymlinkPolicy::Refuse).unwrap();
        let options = ReplaceOptions { expected: ExpectedFile::Absent, ..Default::default() };
        file.replace(b"first", &options).unwrap();
        let error = system_error(file.replace(b"second", &options));
        assert_eq!(error, ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn file_that_changed_since_it_was_read_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let other = directory.path().join("other");
        let changes: [fn(&Path, &Path); 5] = [
            |path, _| fs::write(path, "longer").unwrap(),
            |path, _| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap(),
            |path, other| fs::rename(other, path).unwrap(),
            |path, _| fs::remove_file(path).unwrap(),
            |path, other| {
                fs::remove_file(path).unwrap();
                symlink(other, path).unwrap();
            },
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let _ = fs::remove_file(&path);
            fs::write(&path, "old").unwrap();
            fs::write(&other, "old").unwrap();
            // Detect a change within a tick of the kernel's clock too.
            let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
            fs::File::options().write(true).open(&path).unwrap().set_times(old).unwrap();
            let file = FileAt::open(&path, SymlinkPolicy::Refuse).unwrap();
            let (content, id) = file.read(100).unwrap();
            assert_eq!(content, b"old");
            let options =
                ReplaceOptions { expected: ExpectedFile::Unchanged(id), ..Default::default() };

            wait_for_the_clock(&file);
            change(&path, &other);
            let before = names(directory.path());
            let error = file.replace(b"new", &options).unwrap_err();
            assert!(matches!(error, ReplaceError::Changed { .. }), "change {index}: {error}");
            assert_ne!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]));
            assert_eq!(names(directory.path()), before);
        }

        fs::remove_file(&path).unwrap();
        fs::write(&path, "old").unwrap();
        let file = FileAt::open(&path, SymlinkPolicy::Refuse).unwrap();
        let expected = ExpectedFile::Unchanged(file.read(100).unwrap().1);
        file.replace(b"new", &ReplaceOptions { expected, ..Default::default() }).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    /// Waits until the kernel's clock, by which files are stamped, differs from the file's change time.
    fn wait_for_the_clock(file: &FileAt) {
        let time = |stat: Stat| (stat.st_ctime, stat.st_ctime_nsec);
        let touched = time(statat(&file.directory, &file.name, AtFlags::SYMLINK_NOFOLLOW).unwrap());
        let probe = tempfile::NamedTempFile::new().unwrap();
        while {
            fs::write(&probe, "x").unwrap();
            time(fstat(&probe).unwrap()) == touched
        } {}
    }

    #[test]
    fn failure_leaves_no_file_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = FileAt::open(&path, SymlinkPolicy::Refuse).unwrap();

        // For file systems without `O_TMPFILE`.
        let new = TemporaryFile::create_named(&file.directory).unwrap();
        assert_eq!(names(directory.path()).len(), 2);
        assert!(!names(directory.path())[0].to_str().unwrap().ends_with(".json"));
        drop(new);
        assert_eq!(names(directory.path()), ["file"]);

        let new = TemporaryFile::create_unnamed(&file.directory).unwrap();
        assert_eq!(names(directory.path()), ["file"]);
        drop(new);

        // A name that is too long fails at the very end, when the new file is renamed.
        let long = FileAt { name: "x".repeat(300).into(), ..file };
        let error = system_error(long.replace(b"new", &ReplaceOptions::default()));
        assert_eq!(error, ErrorKind::InvalidFilename);
        assert_eq!(names(directory.path()), ["file"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn leftovers_of_a_killed_replacement_are_removed_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        replace(&path, SymlinkPolicy::Refuse, "old").unwrap();
        let file = FileAt::open(&path, SymlinkPolicy::Refuse).unwrap();
        let [left, held, linked] = ["00000000000000aa", "00000000000000bb", "00000000000000cc"]
            .map(|digits| format!(".oci-hooks-{digits}.new"));
        fs::write(directory.path().join(&left), "").unwrap();
        symlink("file", directory.path().join(&linked)).unwrap();
        fs::write(directory.path().join(".oci-hooks-mine.new"), "").unwrap();
        let holder = TemporaryFile::create_unnamed(&file.directory).unwrap();
        holder.link(OsStr::new(&held)).unwrap();

        file.replace(b"new", &ReplaceOptions::default()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(directory.path()), [&held, &linked, ".oci-hooks-mine.new", "file"]);
        drop(holder);
        file.replace(b"newer", &ReplaceOptions::default()).unwrap();
        assert_eq!(names(directory.path()), [&linked, ".oci-hooks-mine.new", "file"]);
    }

    /// Returns a directory with a bundle, a link to it, and another bundle.
    fn bundle_and_victim() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in [("bundle", "ours"), ("victim", "theirs")] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("config.json"), content).unwrap();
        }
        symlink("bundle", root.path().join("link")).unwrap();
        root
    }

    #[test]
    fn directory_swapped_after_reading_does_not_redirect_the_writing() {
        let root = bundle_and_victim();
        let at = |name: &str| root.path().join(name);

        let file = FileAt::open(&at("link/config.json"), SymlinkPolicy::Refuse).unwrap();
        let (_, id) = file.read(100).unwrap();
        symlink("victim", at("other")).unwrap();
        fs::rename(at("other"), at("link")).unwrap();
        let options =
            ReplaceOptions { expected: ExpectedFile::Unchanged(id), ..Default::default() };
        file.replace(b"new", &options).unwrap();

        assert_eq!(fs::read(at("bundle/config.json")).unwrap(), b"new");
        assert_eq!(fs::read(at("victim/config.json")).unwrap(), b"theirs");
    }

    #[test]
    fn file_swapped_for_a_link_is_neither_read_nor_written_through() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("config.json"), "ours").unwrap();
        fs::write(at("victim"), "theirs").unwrap();
        let file = FileAt::open(&at("config.json"), SymlinkPolicy::Refuse).unwrap();
        fs::remove_file(at("config.json")).unwrap();
        symlink("victim", at("config.json")).unwrap();

        assert!(file.read(100).is_err());
        let error = file.replace(b"new", &ReplaceOptions::default()).unwrap_err();
        assert!(matches!(error, ReplaceError::NotAFile { kind: FileKind::Symlink, .. }), "{error}");
        assert_eq!(fs::read(at("victim")).unwrap(), b"theirs");
    }

    #[test]
    fn racing_swaps_never_change_another_file() {
        let root = bundle_and_victim();
        let at = |name: &str| root.path().join(name);

        let done = AtomicBool::new(false);
        let replaced = std::thread::scope(|scope| {
            // Swaps the directory and, within it, the file, as fast as it can.
            scope.spawn(|| {
                let swap = |target: &str, name: &str| {
                    symlink(target, at("spare")).unwrap();
                    fs::rename(at("spare"), at(name)).unwrap();
                };
                while !done.load(Ordering::Relaxed) {
                    swap("victim", "link");
                    swap("bundle", "link");
                    swap("../victim/config.json", "bundle/config.json");
                    fs::write(at("spare"), "ours").unwrap();
                    fs::rename(at("spare"), at("bundle/config.json")).unwrap();
                }
            });
            let mut replaced = 0;
            let start = std::time::Instant::now();
            for round in 0.. {
                // Enough rounds, and enough successful replacements.
                if (round >= 2000 && replaced >= 20) || start.elapsed().as_secs() > 30 {
                    break;
                }
                let Ok(file) = FileAt::open(&at("link/config.json"), SymlinkPolicy::Refuse) else {
                    continue;
                };
                // A real program would also replace only a file with the expected content.
                let Ok((content, id)) = file.read(100) else { continue };
                if content == b"theirs" {
                    continue;
                }
                let options = ReplaceOptions {
                    expected: ExpectedFile::Unchanged(id),
                    durability: Durability::Unsynced,
                    ..Default::default()
                };
                replaced += u32::from(file.replace(b"new", &options).is_ok());
            }
            done.store(true, Ordering::Relaxed);
            replaced
        });
        assert!(replaced > 0, "no round replaced anything");
        assert_eq!(fs::read(at("victim/config.json")).unwrap(), b"theirs");
        assert_eq!(names(&at("victim")), ["config.json"]);
        assert_eq!(names(&at("bundle")), ["config.json"]);
    }
}
