//! Files of a root file system, opened as the container would see them.
//!
//! The kernel resolves every path with the root file system as `/`, so symlinks of an image lead only to its own files.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use oci_hooks_files::beneath::{descriptor_path, open_as_root, open_strictly};
use oci_hooks_files::fs::{MAX_SYMLINKS, PathContext, PathError, READ_FLAGS};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, mkdirat, open, readlinkat,
};
use rustix::io::Errno;

use crate::rootfs::names;

/// An open root file system.
#[derive(Debug)]
pub struct RootfsDir {
    root: OwnedFd,
    path: PathBuf,
}

/// Maximum size read of a file of users or groups.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl RootfsDir {
    pub(super) fn open(path: &Path) -> Result<Self, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty()).with_path("open", path)?;
        Ok(RootfsDir { root, path: path.to_owned() })
    }

    /// Reads a file; `None` if it does not exist.
    pub fn read(&self, path: &str) -> Result<Option<String>, PathError> {
        let here = self.path.join(path.trim_start_matches('/'));
        let file = match self.resolve(Path::new(path), READ_FLAGS) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            file => File::from(file.with_path("open", &here)?),
        };
        let is_file = file.metadata().with_path("inspect", &here)?.is_file();
        if !is_file {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(PathError::new("read", &here, error));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).with_path("read", &here)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Opens a directory for reading; `None` if it does not exist.
    pub fn directory(&self, path: &Path) -> Result<Option<OwnedFd>, PathError> {
        match self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            directory => directory.map(Some).with_path("open", &self.host_path(path)),
        }
    }

    /// Returns whether `name` does not exist in the root file system, or is a directory and not a
    /// symlink.
    pub fn is_free_or_directory(&self, name: &str) -> Result<bool, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match open_strictly(self.root.as_fd(), name, flags, Mode::empty()) {
            Ok(_) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(error) => Err(PathError::new("open", &self.host_path(Path::new(name)), error)),
        }
    }

    /// Resolves all symlinks of a path, dangling ones included, so that no later user of the path follows any.
    pub fn real(&self, path: &Path) -> Result<PathBuf, PathError> {
        let here = |error: Errno| PathError::new("look up", &self.host_path(path), error);
        let mut left: VecDeque<OsString> = names(path).collect();
        let mut real = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                real.pop();
                continue;
            }
            let next = real.join(&name);
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let relative = next.strip_prefix("/").expect("it begins so");
            match open_strictly(self.root.as_fd(), relative, flags, Mode::empty()) {
                // Missing, or below a file: the rest of the path cannot lead elsewhere.
                Err(Errno::NOENT | Errno::NOTDIR) => real = next,
                Err(error) => return Err(here(error)),
                Ok(file) if is_symlink(file.as_fd()) => {
                    links += 1;
                    if links > MAX_SYMLINKS {
                        return Err(here(Errno::LOOP));
                    }
                    let target = readlinkat(&file, c"", Vec::new()).map_err(here)?.into_bytes();
                    let target = PathBuf::from(OsString::from_vec(target));
                    if target.is_absolute() {
                        real = PathBuf::from("/");
                    }
                    for name in names(&target).rev() {
                        left.push_front(name);
                    }
                }
                Ok(_) => real = next,
            }
        }
        Ok(real)
    }

    /// Creates a directory and its parents, and returns its real path.
    ///
    /// Symlinks on the way are followed within the root; a dangling symlink is an error.
    pub fn create_directories(&self, path: &Path, owner: HostOwner) -> Result<PathBuf, PathError> {
        let here = |error: Errno| PathError::new("create", &self.host_path(path), error);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut directory = self.resolve(Path::new("/"), flags).map_err(here)?;
        let mut so_far = PathBuf::from("/");
        for name in normalize_path(path).iter().skip(1) {
            so_far.push(name);
            directory = match self.resolve(&so_far, flags) {
                Err(Errno::NOENT) => {
                    mkdirat(&directory, name, Mode::from_raw_mode(0o755)).map_err(here)?;
                    let made = self.resolve(&so_far, flags).map_err(here)?;
                    let (uid, gid) = owner.into_raw_ids();
                    chownat(&made, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(here)?;
                    made
                }
                found => found.map_err(here)?,
            };
        }
        self.name_of(&directory).map_err(here)
    }

    /// Returns the path on the host, for messages.
    pub fn host_path(&self, path: &Path) -> PathBuf {
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the path in the container of an open file.
    fn name_of(&self, file: &OwnedFd) -> Result<PathBuf, Errno> {
        let name = |file: &OwnedFd| {
            let name = readlinkat(CWD, descriptor_path(file), Vec::new())?;
            Ok::<_, Errno>(PathBuf::from(OsString::from_vec(name.into_bytes())))
        };
        let (root, file) = (name(&self.root)?, name(file)?);
        Ok(Path::new("/").join(file.strip_prefix(root).map_err(|_| Errno::XDEV)?))
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_as_root(self.root.as_fd(), path, flags, Mode::empty())
    }
}

fn is_symlink(file: BorrowedFd<'_>) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink())
}

/// Owner of new directories, as ids of the host.
#[derive(Clone, Copy, Debug)]
pub struct HostOwner {
    pub uid: u32,
    pub gid: u32,
}

impl HostOwner {
    fn into_raw_ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }
}

/// Removes `.`, `..` and repeated slashes from an absolute path, without accessing the file system.
pub fn normalize_path(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, RootfsDir) {
        let dir = tempfile::tempdir().unwrap();
        let inside = RootfsDir::open(dir.path()).unwrap();
        (dir, inside)
    }

    fn current_owner() -> HostOwner {
        HostOwner {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        }
    }

    #[test]
    fn links_are_resolved_within_the_root() {
        let (dir, inside) = root();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("passwd"), "mine").unwrap();
        symlink("../../../../passwd", dir.path().join("etc/passwd")).unwrap();
        symlink("/passwd", dir.path().join("etc/group")).unwrap();
        assert_eq!(inside.read("/etc/passwd").unwrap().as_deref(), Some("mine"));
        assert_eq!(inside.read("/etc/group").unwrap().as_deref(), Some("mine"));
        assert_eq!(inside.read("/etc/shadow").unwrap(), None);
    }

    #[test]
    fn special_files_are_not_read() {
        let (dir, inside) = root();
        rustix::fs::mkfifoat(CWD, dir.path().join("fifo"), Mode::RWXU).unwrap();
        assert!(inside.read("/fifo").is_err());
        assert!(inside.read("/").is_err());
    }

    #[test]
    fn directories_are_created_within_the_root() {
        let (dir, inside) = root();
        let outside = tempfile::tempdir().unwrap();
        symlink("/", dir.path().join("link")).unwrap();
        symlink(outside.path(), dir.path().join("out")).unwrap();
        assert_eq!(
            inside.create_directories(Path::new("/link/x"), current_owner()).unwrap(),
            Path::new("/x")
        );
        assert!(dir.path().join("x").is_dir());
        inside.create_directories(Path::new("/a/../b//c/."), current_owner()).unwrap();
        assert!(dir.path().join("b/c").is_dir() && !dir.path().join("a").exists());
        assert!(inside.create_directories(Path::new("/out/x"), current_owner()).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn dangling_links_are_resolved() {
        let (dir, inside) = root();
        symlink("/__w/_temp", dir.path().join("alias")).unwrap();
        symlink("../../alias/x", dir.path().join("relative")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        for (path, real) in [
            ("/alias", "/__w/_temp"),
            ("/alias/a/b", "/__w/_temp/a/b"),
            ("/relative/y", "/__w/_temp/x/y"),
            ("/relative/../y", "/__w/_temp/y"),
            ("/new/../new/er", "/new/er"),
            ("/../..", "/"),
        ] {
            assert_eq!(inside.real(Path::new(path)).unwrap(), Path::new(real), "{path}");
        }
        assert!(inside.real(Path::new("/loop/x")).is_err());
    }

    #[test]
    fn links_in_place_of_directories_are_detected() {
        let (dir, inside) = root();
        symlink("/", dir.path().join("proc")).unwrap();
        fs::create_dir(dir.path().join("sys")).unwrap();
        assert!(!inside.is_free_or_directory("proc").unwrap());
        assert!(inside.is_free_or_directory("sys").unwrap());
        assert!(inside.is_free_or_directory("dev").unwrap());
    }
}
