//! Opening paths beneath a directory: no path leads out of it, whatever symbolic links it contains, and even if
//! they are swapped meanwhile. The kernel ensures this with `openat2` (Linux 5.6).

use std::ffi::{CStr, OsStr};
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::descent::DIRECTORY;
use crate::fs::{PathContext as _, PathError};

/// Number of retries of a lookup that fails with `EAGAIN` because a directory was renamed meanwhile.
const MAX_RETRIES: usize = 128;

/// Flags to open a file without side effects; the descriptor keeps referring to the same file.
pub const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory beneath which untrusted paths are opened.
#[derive(Debug)]
pub struct ConfinedRoot {
    root: OwnedFd,
    path: PathBuf,
}

impl ConfinedRoot {
    /// Opens the root directory; its path is trusted.
    pub fn new(root: &Path) -> Result<Self, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, root, flags, Mode::empty()).with_path("open", root)?;
        Ok(ConfinedRoot { root: fd, path: root.to_owned() })
    }

    /// Uses an open directory as the root; the path is for messages.
    pub fn from_fd(root: OwnedFd, path: &Path) -> Self {
        ConfinedRoot { root, path: path.to_owned() }
    }

    /// Opens a path that contains no symbolic link and crosses no mount.
    pub fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, PathError> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        open_strictly(self.root.as_fd(), relative, flags, mode)
            .with_path("open", &self.path.join(relative))
    }

    /// Opens a path as a process with this root directory (`chroot`) would: symbolic links are
    /// followed and end up beneath the root, `..` stops at it.
    pub fn open_as_root(
        &self,
        path: &Path,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, PathError> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        open_as_root(self.root.as_fd(), relative, flags, mode)
            .with_path("open", &self.path.join(relative))
    }

    /// Opens a path whose symbolic links and `..` stay beneath the directory; `EXDEV` if they do not.
    pub fn open_within(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        retry(|| openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, resolve))
    }

    /// Creates a directory and its missing parents, and opens it. Symbolic links are followed as in
    /// [`open_as_root`](Self::open_as_root); a dangling symlink is an error.
    ///
    /// Calls `finish` for each directory that this call created, but not for directories that another
    /// process created meanwhile or put in their place.
    pub fn mkdir_all(
        &self,
        path: &Path,
        mode: Mode,
        finish: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result<OwnedFd, PathError> {
        let open = |path: &Path| open_as_root(self.root.as_fd(), path, DIRECTORY, Mode::empty());
        let mut reached = PathBuf::from(".");
        let mut directory = open(&reached).with_path("open", &self.path)?;
        for component in path.components() {
            let name = match component {
                Component::Normal(name) => name,
                Component::ParentDir => "..".as_ref(),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            };
            reached.push(name);
            directory = match open(&reached) {
                Err(Errno::NOENT) => {
                    match mkdirat(&directory, name, mode) {
                        Ok(()) => open_made(directory.as_fd(), name).and_then(|made| {
                            if is_new(made.as_fd())? {
                                finish(made.as_fd())?;
                            }
                            Ok(made)
                        }),
                        // Opening again fails for a dangling symlink.
                        Err(Errno::EXIST) => open(&reached),
                        Err(error) => Err(error),
                    }
                }
                opened => opened,
            }
            .with_path("create the directory", &self.path.join(&reached))?;
        }
        Ok(directory)
    }

    /// Returns the descriptor of the root directory.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the descriptor of the root directory, with ownership.
    pub fn into_fd(self) -> OwnedFd {
        self.root
    }

    /// Returns the path that the directory was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a path beneath a directory; the path may contain no symbolic link and cross no mount.
pub fn open_strictly<P: rustix::path::Arg + Copy>(
    root: BorrowedFd<'_>,
    path: P,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    retry(|| openat2(root, path, flags | OFlags::CLOEXEC, mode, resolve))
}

/// Returns the path of a descriptor in `/proc/self/fd`, for calls that accept no `O_PATH` descriptor: it leads to the
/// same file even if the file was renamed.
pub fn descriptor_path(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// Opens a directory that was just created, and fails if its name was taken by a file that is no directory.
fn open_made(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_strictly(directory, name, DIRECTORY, Mode::empty())
}

/// Returns whether a directory is still as created: empty, and of this user. A directory that another process put in
/// its place belongs to another user, or is not empty.
fn is_new(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = fstat(directory)?;
    let is_own = stat.st_uid == geteuid().as_raw();
    let mut names = Dir::read_from(directory)?;
    let is_dot = |name: &CStr| name == c"." || name == c"..";
    let is_empty = names.all(|entry| entry.is_ok_and(|entry| is_dot(entry.file_name())));
    Ok(is_own && is_empty)
}

/// Opens a path as a process with this root directory (`chroot`) would.
pub fn open_as_root<P: rustix::path::Arg + Copy>(
    root: BorrowedFd<'_>,
    path: P,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // A link in the last component is followed like any other.
    let flags = (flags | OFlags::CLOEXEC) - OFlags::NOFOLLOW;
    retry(|| openat2(root, path, flags, mode, resolve))
}

/// Retries an open that fails with `EINTR` or `EAGAIN`: openat2(2) returns `EAGAIN` if a path is renamed meanwhile.
pub fn retry(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    for _ in 0..MAX_RETRIES {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    open()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, ConfinedRoot) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/a")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        symlink("../outside", dir.path().join("root/out")).unwrap();
        symlink(dir.path().join("outside"), dir.path().join("root/absolute")).unwrap();
        symlink("/a", dir.path().join("root/in")).unwrap();
        let beneath = ConfinedRoot::new(&dir.path().join("root")).unwrap();
        (dir, beneath)
    }

    #[test]
    fn symbolic_links_are_rejected_or_stay_below_the_root() {
        let (_dir, root) = tree();
        let open = |path: &str| root.open(path.as_ref(), OFlags::RDONLY, Mode::empty());
        open("a").unwrap();
        open("/a").unwrap();
        for path in ["in", "out", "in/../a", "..", "a/../.."] {
            open(path).unwrap_err();
        }
        let open = |path: &str| root.open_as_root(path.as_ref(), OFlags::RDONLY, Mode::empty());
        for path in ["a", "in", "/in", "../../in"] {
            open(path).unwrap();
        }
        for path in ["out", "absolute"] {
            open(path).unwrap_err();
        }
    }

    #[test]
    fn directories_are_created_below_the_root() {
        let (dir, root) = tree();
        root.mkdir_all("in/x/y".as_ref(), Mode::RWXU, |_| Ok(())).unwrap();
        assert!(dir.path().join("root/a/x/y").is_dir());
        root.mkdir_all("../../z".as_ref(), Mode::RWXU, |_| Ok(())).unwrap();
        assert!(dir.path().join("root/z").is_dir());
        root.mkdir_all("out/x".as_ref(), Mode::RWXU, |_| Ok(())).unwrap_err();
        root.mkdir_all("absolute/x".as_ref(), Mode::RWXU, |_| Ok(())).unwrap_err();
        assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
    }

    #[test]
    fn only_created_directories_are_finished() {
        let (dir, root) = tree();
        let path = |name: &str| dir.path().join("root").join(name);
        let finished = std::cell::RefCell::new(Vec::new());
        let finish = |made: BorrowedFd<'_>| {
            finished.borrow_mut().push(fstat(made)?.st_ino);
            // Another process creates the next directory first.
            let _ = fs::create_dir(path("a/x/y"));
            Ok(())
        };
        root.mkdir_all("in/x/y/z".as_ref(), Mode::RWXU, finish).unwrap();
        let made = ["a/x", "a/x/y/z"]
            .map(|name| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path(name)).unwrap()));
        assert_eq!(*finished.borrow(), made);
    }

    #[test]
    fn replaced_directory_is_not_new() {
        let (dir, root) = tree();
        assert!(is_new(open_made(root.as_fd(), "a".as_ref()).unwrap().as_fd()).unwrap());
        assert!(!is_new(root.as_fd()).unwrap(), "it holds something");
        for name in ["in", "out"] {
            open_made(root.as_fd(), name.as_ref()).unwrap_err();
        }
        if geteuid().is_root() {
            // Only root can give a directory away.
            std::os::unix::fs::chown(dir.path().join("root/a"), Some(54321), None).unwrap();
            assert!(!is_new(open_made(root.as_fd(), "a".as_ref()).unwrap().as_fd()).unwrap());
        }
    }
}
