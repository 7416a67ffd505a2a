//! Access to files of an instance from the host: symlinks never lead out of its root file system, and operations have
//! only the permissions of the instance's root.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use oci_hooks_files::beneath::{ConfinedRoot, open_strictly};
use oci_hooks_files::fs::{PathContext as _, PathError, READ_FLAGS};
use oci_hooks_host::removal::remove_all;
use oci_hooks_host::userns::{as_root_of, shares_namespace_with};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chownat, fchmod, fchown, fstat, mkdirat, openat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::boot::GuestIds;

/// Mode of created parent directories.
const DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// Root file system of an instance.
#[derive(Debug)]
pub struct GuestRoot {
    root: ConfinedRoot,
    /// User namespace of the instance, if different from this process's.
    users: Option<OwnedFd>,
}

impl GuestRoot {
    /// Opens the root file system of an instance; `users` is its user namespace, if different from this process's.
    pub fn open(root: &Path, users: Option<OwnedFd>) -> Result<Self, PathError> {
        Ok(GuestRoot { root: ConfinedRoot::new(root)?, users })
    }

    /// Opens the root file system of a process, including its mounts.
    pub fn of_process(pid: u32) -> Result<Self, PathError> {
        let path = PathBuf::from(format!("/proc/{pid}/ns/user"));
        let users = match shares_namespace_with(pid) {
            true => None,
            false => Some(File::open(&path).with_path("open", &path)?.into()),
        };
        GuestRoot::open(Path::new(&format!("/proc/{pid}/root")), users)
    }

    /// Returns the path by which the root file system was opened.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Runs `work` as root of the instance, in a copy of this process if the instance has another user namespace. The
    /// copy returns only the number of an error, or else its text; `action` and `path` describe the error.
    fn run_as_root<T: Serialize + DeserializeOwned>(
        &self,
        action: &'static str,
        path: &Path,
        work: impl FnOnce() -> Result<T, PathError>,
    ) -> Result<T, PathError> {
        let Some(users) = &self.users else { return work() };
        let done = as_root_of(users.as_fd(), || work().map_err(|error| error.source));
        done.with_path(action, &self.outer_path(path))
    }

    /// Writes a file, replacing its content; missing parent directories are created with the same owner.
    pub fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        owner: GuestIds,
    ) -> Result<(), PathError> {
        self.run_as_root("write", path, || {
            self.parent(path, Some(owner))?;
            // The path may be a FIFO or a device, on which `open` would block.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = self.root.open_as_root(path, flags, Mode::from_raw_mode(0o600))?;
            let shown = self.outer_path(path);
            check_regular(&file).with_path("write", &shown)?;
            let mut file = File::from(file);
            file.set_len(0).with_path("truncate", &shown)?;
            let (uid, gid) = ids(owner);
            fchown(&file, Some(uid), Some(gid)).with_path("change the owner of", &shown)?;
            fchmod(&file, Mode::from_raw_mode(mode)).with_path("change the mode of", &shown)?;
            file.write_all(content).with_path("write", &shown)
        })
    }

    /// Creates a symlink, replacing an existing file or symlink.
    pub fn link(&self, path: &Path, target: &Path, owner: GuestIds) -> Result<(), PathError> {
        self.run_as_root("create the symlink", path, || {
            let parent = self.parent(path, Some(owner))?;
            let (name, shown) = (name(path), self.outer_path(path));
            match unlinkat(&parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                result => result.with_path("replace", &shown)?,
            }
            symlinkat(target, &parent, name).with_path("create the symlink", &shown)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let made = open_strictly(parent.as_fd(), name, flags, Mode::empty())
                .with_path("open", &shown)?;
            // A job may have replaced the symlink by a file meanwhile, whose owner must not change.
            let found = fstat(&made).with_path("inspect", &shown)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
                return Err(PathError::new("change the owner of", &shown, Errno::STALE));
            }
            let (uid, gid) = ids(owner);
            chownat(&made, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
                .with_path("change the owner of", &shown)
        })
    }

    /// Reads a file of at most `limit_bytes`; none if the file does not exist.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, PathError> {
        self.run_as_root("read", path, || {
            let file = match self.root.open_as_root(path, READ_FLAGS, Mode::empty()) {
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let shown = self.outer_path(path);
            check_regular(&file).with_path("read", &shown)?;
            let mut content = Vec::new();
            File::from(file)
                .take(limit_bytes + 1)
                .read_to_end(&mut content)
                .with_path("read", &shown)?;
            if content.len() as u64 > limit_bytes {
                let why = format!("the file is larger than {limit_bytes} bytes");
                return Err(PathError::new("read", &shown, io::Error::other(why)));
            }
            Ok(Some(content))
        })
    }

    /// Removes a file or directory tree, if it exists.
    pub fn remove(&self, path: &Path) -> Result<(), PathError> {
        self.run_as_root("remove", path, || {
            let parent = match self.parent(path, None) {
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(()),
                parent => parent?,
            };
            remove_all(parent.as_fd(), name(path).as_bytes())
                .with_path("remove", &self.outer_path(path))
        })
    }

    /// Opens the parent directory of a path; with an owner, creates missing directories for that owner.
    fn parent(&self, path: &Path, owner: Option<GuestIds>) -> Result<OwnedFd, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let parent = path.strip_prefix("/").unwrap_or(path).parent();
        // The root directory always exists, so the recursion ends here.
        let parent = parent.filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        match (self.root.open_as_root(parent, flags, Mode::empty()), owner) {
            (Err(error), Some(owner)) if error.source.kind() == io::ErrorKind::NotFound => {
                let above = self.parent(parent, Some(owner))?;
                let (name, shown) = (name(parent), self.outer_path(parent));
                mkdirat(&above, name, DIRECTORY).with_path("create the directory", &shown)?;
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(&above, name, flags, Mode::empty()).with_path("open", &shown)?;
                let (uid, gid) = ids(owner);
                fchown(&made, Some(uid), Some(gid)).with_path("change the owner of", &shown)?;
                Ok(made)
            }
            (result, _) => result,
        }
    }

    fn outer_path(&self, path: &Path) -> PathBuf {
        self.root.path().join(path.strip_prefix("/").unwrap_or(path))
    }
}

fn name(path: &Path) -> &std::ffi::OsStr {
    // For `..` and `/`, returns `.`, which cannot be created.
    path.components()
        .next_back()
        .filter(|last| matches!(last, Component::Normal(_)))
        .map_or(".".as_ref(), Component::as_os_str)
}

fn ids(owner: GuestIds) -> (Uid, Gid) {
    (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid))
}

fn check_regular(file: &OwnedFd) -> io::Result<()> {
    let kind = FileType::from_raw_mode(fstat(file)?.st_mode);
    if kind.is_file() { Ok(()) } else { Err(io::Error::other("not a regular file")) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::process::{getgid, getuid};

    use super::*;

    fn root() -> (tempfile::TempDir, GuestRoot, GuestIds) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("outside"), "mine").unwrap();
        let root = GuestRoot::open(&dir.path().join("root"), None).unwrap();
        (dir, root, GuestIds { uid: getuid().as_raw(), gid: getgid().as_raw() })
    }

    #[test]
    fn written_files_can_be_read_and_removed() {
        let (dir, root, owner) = root();
        let path = Path::new("/a/b/c");
        root.write(path, b"long text", 0o644, owner).unwrap();
        root.write(path, b"text", 0o600, owner).unwrap();
        assert_eq!(root.read(path, 4).unwrap().unwrap(), b"text");
        root.read(path, 3).unwrap_err();
        let mode = fs::metadata(dir.path().join("root/a/b/c")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        root.link(Path::new("/a/link"), path, owner).unwrap();
        root.link(Path::new("/a/link"), path, owner).unwrap();
        assert_eq!(root.read(Path::new("a/link"), 10).unwrap().unwrap(), b"text");
        root.remove(Path::new("/a")).unwrap();
        root.remove(Path::new("/a")).unwrap();
        root.remove(Path::new("/a/b/c")).unwrap();
        assert!(root.read(path, 10).unwrap().is_none());
    }

    #[test]
    fn links_do_not_lead_out_of_the_root() {
        let (dir, root, owner) = root();
        let path = dir.path().join("root");
        symlink("../outside", path.join("file")).unwrap();
        symlink(dir.path(), path.join("dir")).unwrap();
        // In the root file system, the targets of the symlinks do not exist.
        let _ = root.write(Path::new("file"), b"theirs", 0o644, owner);
        let _ = root.write(Path::new("dir/outside"), b"theirs", 0o644, owner);
        let _ = root.write(Path::new("../outside"), b"theirs", 0o644, owner);
        let _ = root.remove(Path::new("dir/outside"));
        let _ = root.remove(Path::new(".."));
        assert_eq!(fs::read_to_string(dir.path().join("outside")).unwrap(), "mine");
    }

    #[test]
    fn an_empty_root_takes_files_at_any_depth() {
        let (_dir, root, owner) = root();
        for path in ["/top", "/a/b/c/file", "relative"] {
            root.write(Path::new(path), b"x", 0o644, owner).unwrap();
            assert_eq!(root.read(Path::new(path), 1).unwrap().unwrap(), b"x", "{path}");
        }
        root.link(Path::new("/link"), Path::new("/top"), owner).unwrap();
        assert_eq!(root.read(Path::new("/link"), 1).unwrap().unwrap(), b"x");
    }

    #[test]
    fn fifo_is_not_waited_for() {
        let (dir, root, owner) = root();
        let fifo = dir.path().join("root/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o644), 0)
            .unwrap();
        root.read(Path::new("fifo"), 10).unwrap_err();
        root.write(Path::new("fifo"), b"x", 0o644, owner).unwrap_err();
    }
}
