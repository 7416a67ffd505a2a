//! Files and directories of the host that somebody else names, opened once.
//!
//! Whatever is checked and used is what the descriptor holds: a name that leads elsewhere later
//! changes nothing. So there is no path to be had from these values but for messages.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, chownat, fchmod,
    fchown, fstat, mkdirat, openat, openat2, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::beneath::{Beneath, open_as_root, retry};
use super::caller::Caller;
use super::fs::{PathContext as _, PathError};

/// Something of the host that is open, by a descriptor that permits nothing by itself (`O_PATH`).
#[derive(Clone)]
pub struct HostFile {
    file: Arc<OwnedFd>,
    name: Arc<Path>,
    stat: Stat,
}

impl HostFile {
    /// Opens what only the administrator or this program names; symbolic links are followed.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        let file = openat(CWD, path, PATH_ONLY, Mode::empty()).at("open", path)?;
        Self::from_fd(file, path)
    }

    fn from_fd(file: OwnedFd, name: &Path) -> Result<Self, PathError> {
        let stat = fstat(&file).at("look at", name)?;
        Ok(HostFile { file: Arc::new(file), name: name.into(), stat })
    }

    /// Returns what to call it in messages. It may have another name by now, or none.
    pub fn display(&self) -> std::path::Display<'_> {
        self.name.display()
    }

    /// Returns the error of something that could not be done with it.
    pub fn error(&self, action: &'static str, source: impl Into<io::Error>) -> PathError {
        PathError::new(action, &self.name, source)
    }

    /// Returns what kind of file it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Tells if it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind().is_dir()
    }

    /// Returns the ids of its owner and group when it was opened.
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// Returns all that was known of it when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Tells if both are one file.
    pub fn is_same(&self, other: &HostFile) -> bool {
        let id = |file: &HostFile| (file.stat.st_dev, file.stat.st_ino);
        id(self) == id(other)
    }

    /// Tells if it is a file that its name led to when it was opened, and still is.
    ///
    /// For messages and for files that runtimes insist on looking at by name; nothing is decided by it.
    pub fn has_name(&self, name: &Path) -> bool {
        statat(CWD, name, AtFlags::empty())
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (self.stat.st_dev, self.stat.st_ino))
    }

    /// Opens what is at a path beneath this directory, as a process sees it whose root directory it
    /// is: symbolic links stay beneath. If nothing is there, directories like this one are made, of this
    /// user and group; those that are found there stay whose they are.
    pub fn within(&self, path: &Path, (uid, gid): (u32, u32)) -> Result<HostFile, PathError> {
        let name = self.name.join(path);
        match open_as_root(self.file.as_fd(), path, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return Self::from_fd(opened.at("open", &name)?, &name),
        }
        let here = self.file.try_clone().map_err(|error| self.error("open", error))?;
        let finish = |made: BorrowedFd<'_>| {
            fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            fchmod(made, Mode::from_raw_mode(self.stat.st_mode))
        };
        let root = Beneath::from_fd(here, &self.name);
        let made = root.mkdir_all(path, Mode::from_raw_mode(0o755), finish)?;
        Self::from_fd(made, &name)
    }

    /// Opens it anew, to read it.
    ///
    /// What is no file or directory is not opened: a FIFO would wait, and a device may do anything.
    pub fn reopen(&self) -> Result<File, PathError> {
        if !matches!(self.kind(), FileType::RegularFile | FileType::Directory) {
            let error = io::Error::other("it is neither a file nor a directory");
            return Err(self.error("open", error));
        }
        reopen(self.as_fd()).map_err(|error| self.error("open", error))
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = (self.stat.st_dev, self.stat.st_ino);
        f.debug_struct("HostFile").field("name", &self.name).field("id", &id).finish()
    }
}

/// Two are equal if they are one file.
impl PartialEq for HostFile {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for HostFile {}

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// No way out, and nothing that somebody could point elsewhere.
const STRICT: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A directory beneath which somebody's files are looked up: a runner's, or one that workflows may
/// mount from.
///
/// Paths are resolved by the kernel beneath the directory (`openat2` with `RESOLVE_BENEATH` and
/// `RESOLVE_NO_SYMLINKS`). With a [`Caller`], all of it is done with their access: what they cannot
/// read is not opened, and what belongs to neither them nor root is refused.
#[derive(Clone, Debug)]
pub struct HostRoot {
    dir: HostFile,
    caller: Option<Caller>,
    /// Whether files of others than the caller and root are used too.
    any_owner: bool,
}

impl HostRoot {
    /// Opens a directory that the administrator names, for root's own use.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        let dir = HostFile::open_trusted(path)?;
        Ok(HostRoot { dir: directory(dir)?, caller: None, any_owner: false })
    }

    /// Opens the directory of a user who may have put something else in its place: no symbolic link
    /// leads to it, and it is theirs.
    pub fn open_as(path: &Path, caller: &Caller) -> Result<Self, PathError> {
        let root = Self::open_shared_as(path, caller)?;
        let owner = root.dir.owner().0;
        if owner != caller.uid {
            return Err(root.dir.error("use", foreign(owner, caller)));
        }
        Ok(root)
    }

    /// Opens such a directory that may be root's too: a cache of tools which users share.
    pub fn open_shared_as(path: &Path, caller: &Caller) -> Result<Self, PathError> {
        let slash = openat(CWD, c"/", PATH_ONLY, Mode::empty()).at("open", Path::new("/"))?;
        let relative = path.strip_prefix("/").unwrap_or(path);
        let dir = directory(open_as(slash.as_fd(), relative, path, Some(caller))?)?;
        let root = HostRoot { dir, caller: Some(caller.clone()), any_owner: false };
        root.check_owner(&root.dir.stat).at("use", path)?;
        Ok(root)
    }

    /// Opens a directory beneath this one, to have names looked up beneath that one alone.
    pub fn subdirectory(&self, relative: &Path) -> Result<Self, PathError> {
        let dir = directory(self.open(relative)?)?;
        Ok(HostRoot { dir, caller: self.caller.clone(), any_owner: self.any_owner })
    }

    /// Returns a directory that is open already, for root's own use.
    pub fn of(dir: HostFile) -> Result<Self, PathError> {
        Ok(HostRoot { dir: directory(dir)?, caller: None, any_owner: false })
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
        HostRoot { dir: self.dir.clone(), caller, any_owner: true }
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
        match &self.caller {
            Some(caller) if !self.any_owner && ![caller.uid, 0].contains(&stat.st_uid) => {
                Err(foreign(stat.st_uid, caller))
            }
            _ => Ok(()),
        }
    }

    fn name_of(&self, relative: &Path) -> PathBuf {
        // Without the slash that joining nothing would add.
        self.dir.name.join(relative).components().collect()
    }
}

/// Opens a file or directory anew, to read it, that a descriptor of `O_PATH` is of.
pub fn reopen(file: BorrowedFd<'_>) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(openat(CWD, link, flags, Mode::empty())?.into())
}

fn directory(dir: HostFile) -> Result<HostFile, PathError> {
    if dir.is_dir() { Ok(dir) } else { Err(dir.error("open", Errno::NOTDIR)) }
}

/// Opens a path beneath a directory, with the access of a user if it is for one.
fn open_as(
    root: BorrowedFd<'_>,
    relative: &Path,
    name: &Path,
    caller: Option<&Caller>,
) -> Result<HostFile, PathError> {
    let path = or_dot(relative);
    let opened = act(caller, || {
        let file = retry(|| openat2(root, path, PATH_ONLY, Mode::empty(), STRICT))?;
        if caller.is_some() {
            // A descriptor like this one is given to anybody who can get there.
            check_readable(file.as_fd())?;
        }
        Ok(file)
    });
    HostFile::from_fd(opened.and_then(|opened| opened).at("open", name)?, name)
}

/// Returns the name that a directory has beneath itself if there is none.
fn or_dot(relative: &Path) -> &Path {
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

/// Does something with the access of a user if it is for one, on this thread otherwise.
fn act<T: Send>(
    caller: Option<&Caller>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<io::Result<T>> {
    match caller {
        Some(caller) => caller.act(work),
        None => Ok(work()),
    }
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

#[expect(unsafe_code, reason = "rustix passes no empty path to faccessat2")]
fn check_readable(file: BorrowedFd<'_>) -> io::Result<()> {
    let stat = fstat(file)?;
    let enter = if FileType::from_raw_mode(stat.st_mode).is_dir() { libc::X_OK } else { 0 };
    // SAFETY: the path is a string with its end, and the descriptor is open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::R_OK | enter,
            libc::AT_EMPTY_PATH | libc::AT_EACCESS,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn foreign(owner: u32, caller: &Caller) -> io::Error {
    let text = format!("it belongs to user {owner}, not to user {} who asks for it", caller.uid);
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::caller::own_ids;
    use super::*;

    fn tree() -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir_all(path.join("root/a")).unwrap();
        fs::create_dir(path.join("outside")).unwrap();
        symlink("../outside", path.join("root/link")).unwrap();
        let root = HostRoot::open_trusted(&path.join("root")).unwrap();
        (dir, root)
    }

    #[test]
    fn what_was_opened_stays_what_it_was() {
        let (dir, root) = tree();
        let path = dir.path().join("root/a");
        let opened = root.open(Path::new("a")).unwrap();
        assert!(opened.has_name(&path));
        fs::rename(&path, dir.path().join("root/b")).unwrap();
        symlink("../outside", &path).unwrap();
        assert!(!opened.has_name(&path));
        assert!(opened.has_name(&dir.path().join("root/b")));
        assert_eq!(opened, root.open(Path::new("b")).unwrap());
        root.open(Path::new("a")).unwrap_err();
    }

    #[test]
    fn links_and_ways_out_are_refused() {
        let (dir, root) = tree();
        for path in ["link", "link/x", "..", "a/../..", "/etc"] {
            root.open(Path::new(path)).unwrap_err();
            root.open_or_make_dir(Path::new(path), own_ids()).unwrap_err();
            root.read(Path::new(path)).unwrap_err();
            root.write(Path::new(path)).unwrap_err();
        }
        assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
    }

    #[test]
    fn directories_are_made_with_those_above_them() {
        let (dir, root) = tree();
        let made = root.open_or_make_dir(Path::new("x/y"), own_ids()).unwrap();
        assert!(made.is_dir() && made.has_name(&dir.path().join("root/x/y")));
        assert_eq!(made, root.open_or_make_dir(Path::new("x/y"), own_ids()).unwrap());
        assert!(root.open(Path::new("")).unwrap().is_same(root.dir()));
        assert!(root.read(Path::new("")).unwrap().metadata().unwrap().is_dir());
    }

    #[test]
    fn a_subdirectory_is_given_to_somebody_only_where_it_was_made() {
        let (uid, _) = own_ids();
        if uid != 0 {
            // Only root gives anything to anybody.
            return;
        }
        let (dir, _root) = tree();
        let owner = |path: &str| {
            let found = fs::metadata(dir.path().join("root").join(path)).unwrap();
            let mode = std::os::unix::fs::MetadataExt::mode(&found) & 0o7777;
            (std::os::unix::fs::MetadataExt::uid(&found), mode)
        };
        let mode = |path: &str, mode| {
            let path = dir.path().join("root").join(path);
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).unwrap();
        };
        mode("", 0o750);
        mode("a", 0o700);
        symlink("a", dir.path().join("root/inner")).unwrap();
        let root = HostRoot::open_trusted(&dir.path().join("root")).unwrap();
        root.dir().within(Path::new("a"), (12345, 12345)).unwrap();
        root.dir().within(Path::new("inner/new/sub"), (12345, 12345)).unwrap();
        assert_eq!((owner(""), owner("a")), ((0, 0o750), (0, 0o700)), "found there");
        assert_eq!(owner("a/new"), (12345, 0o750));
        assert_eq!(owner("a/new/sub"), (12345, 0o750));
        symlink("/missing", dir.path().join("root/dangling")).unwrap();
        root.dir().within(Path::new("dangling/x"), (12345, 12345)).unwrap_err();
    }

    #[test]
    fn who_asks_has_their_own_directories_and_shares_those_of_root() {
        let (uid, gid) = own_ids();
        if uid != 0 {
            // Only root may act as somebody.
            return;
        }
        let (dir, _root) = tree();
        let top = dir.path().canonicalize().unwrap();
        rustix::fs::chmod(&top, Mode::from_raw_mode(0o755)).unwrap();
        let caller = Caller { uid: 12345, gid: 12345, groups: Vec::new() };
        let own = top.join("root/a");
        std::os::unix::fs::chown(&own, Some(12345), Some(12345)).unwrap();
        HostRoot::open_as(&own, &caller).unwrap();
        HostRoot::open_as(&top.join("root"), &caller).unwrap_err();
        let shared = HostRoot::open_shared_as(&top.join("root"), &caller).unwrap();
        shared.write(Path::new("made")).unwrap_err();
        assert!(shared.subdirectory(Path::new("a")).unwrap().write(Path::new("made")).is_ok());
        std::os::unix::fs::chown(&own, Some(12346), Some(gid)).unwrap();
        for path in ["root/a", "root/link", "missing"] {
            HostRoot::open_shared_as(&top.join(path), &caller).unwrap_err();
        }
    }

    #[test]
    fn a_fifo_is_neither_waited_for_nor_written_to() {
        let (dir, root) = tree();
        rustix::fs::mkfifoat(CWD, dir.path().join("root/fifo"), Mode::RWXU).unwrap();
        root.write(Path::new("fifo")).unwrap_err();
        root.open(Path::new("fifo")).unwrap().reopen().unwrap_err();
    }

    #[test]
    fn names_of_the_directory_are_compared_by_their_parts() {
        let (_dir, root) = tree();
        let name = root.dir().name.to_path_buf();
        assert_eq!(root.relative(&name.join("a/b")), Some(Path::new("a/b")));
        assert_eq!(root.relative(&name.with_file_name("rootless")), None);
    }
}
