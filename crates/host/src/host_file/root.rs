//! Directories beneath which untrusted paths are resolved.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::retry;
use oci_hooks_files::fs::{PathContext as _, PathError, READ_FLAGS};
use rustix::fs::{
    AtFlags, Dir, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, mkdirat, openat2,
    readlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{HostFile, PATH_ONLY};

/// Resolution stays beneath the directory and follows no symbolic link.
const STRICT: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A directory beneath which untrusted paths are resolved: the work directory of a runner, or a directory that
/// workflows may mount from.
///
/// Paths are resolved by the kernel beneath the directory (`openat2` with `RESOLVE_BENEATH` and
/// `RESOLVE_NO_SYMLINKS`).
#[derive(Clone, Debug)]
pub struct HostRoot {
    dir: HostFile,
}

impl HostRoot {
    /// Opens a directory that the administrator or the runner chose.
    pub fn open_trusted(path: &Path) -> Result<Self, PathError> {
        Self::of(HostFile::open_trusted(path)?)
    }

    /// Opens a directory beneath this one, as the root of its own paths.
    pub fn subdirectory(&self, relative: &Path) -> Result<Self, PathError> {
        Self::of(self.open(relative)?)
    }

    /// Uses an open directory as the root.
    pub fn of(dir: HostFile) -> Result<Self, PathError> {
        if dir.is_dir() { Ok(HostRoot { dir }) } else { Err(dir.error("open", Errno::NOTDIR)) }
    }

    /// Returns the names of the directory's entries, sorted.
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

    /// Returns the root directory.
    pub fn dir(&self) -> &HostFile {
        &self.dir
    }

    /// Returns the rest of a path that begins with the path of the directory. Only the text is compared; the
    /// other methods resolve the rest.
    pub fn strip_root<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.dir.name).ok()
    }

    /// Opens a path with `O_PATH`, for its status or for mounting.
    pub fn open(&self, relative: &Path) -> Result<HostFile, PathError> {
        let name = self.name_of(relative);
        let path = dot_if_empty(relative);
        let opened = retry(|| openat2(self.dir.as_fd(), path, PATH_ONLY, Mode::empty(), STRICT));
        HostFile::from_fd(opened.with_path("open", &name)?, &name)
    }

    /// Opens a path. If it is missing, creates a directory there, and missing parents; new
    /// directories belong to `owner`.
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
        make_dirs(self.dir.as_fd(), relative, owner).with_path("create the directory", &name)?;
        self.open(relative)
    }

    /// Returns the target of the symbolic link at a path; none if there is no link.
    pub fn link_target(&self, relative: &Path) -> Option<PathBuf> {
        let flags = PATH_ONLY | OFlags::NOFOLLOW;
        let link = retry(|| openat2(self.dir.as_fd(), relative, flags, Mode::empty(), STRICT));
        let target = readlinkat(link.ok()?, c"", Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Opens a file or directory for reading.
    pub fn read(&self, relative: &Path) -> Result<File, PathError> {
        self.file(relative, READ_FLAGS)
    }

    /// Opens a file for writing; creates it if it is missing, but does not truncate it.
    pub fn write(&self, relative: &Path) -> Result<File, PathError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.file(relative, flags)?;
        let name = self.name_of(relative);
        let metadata = file.metadata().with_path("inspect", &name)?;
        if !metadata.is_file() {
            return Err(PathError::new(
                "write",
                &name,
                io::Error::other("it is not a regular file"),
            ));
        }
        Ok(file)
    }

    fn file(&self, relative: &Path, flags: OFlags) -> Result<File, PathError> {
        let name = self.name_of(relative);
        let mode =
            if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        let path = dot_if_empty(relative);
        let opened =
            retry(|| openat2(self.dir.as_fd(), path, flags | OFlags::CLOEXEC, mode, STRICT));
        Ok(File::from(opened.with_path("open", &name)?))
    }

    fn name_of(&self, relative: &Path) -> PathBuf {
        // Joining an empty path adds a slash, which `components` drops.
        self.dir.name.join(relative).components().collect()
    }
}

/// Returns `.` for an empty path.
fn dot_if_empty(relative: &Path) -> &Path {
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

/// Creates the missing directories of a path. No symbolic link is followed.
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
        // Another user may have put a directory there meanwhile; only a directory of this user is given away.
        if made && fstat(&directory)?.st_uid == geteuid().as_raw() && uid != geteuid().as_raw() {
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            chownat(&directory, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
        }
    }
    Ok(())
}
