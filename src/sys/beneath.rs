//! Opening beneath a directory: no path leads out of it, whatever symbolic links there are and
//! whoever swaps them meanwhile. The kernel sees to it, by `openat2` (Linux 5.6).

use std::ffi::{CStr, OsStr};
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::descent::DIRECTORY;
use crate::sys::fs::{PathContext as _, PathError};

/// How often a lookup is repeated that the kernel could not finish because somebody renamed a
/// directory meanwhile.
const MAX_RETRIES: usize = 128;

/// A directory that paths of others are opened beneath.
#[derive(Debug)]
pub struct Beneath {
    root: OwnedFd,
    path: PathBuf,
}

impl Beneath {
    /// Opens the directory itself, which is trusted.
    pub fn new(root: &Path) -> Result<Self, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, root, flags, Mode::empty()).at("open", root)?;
        Ok(Beneath { root: fd, path: root.to_owned() })
    }

    /// Takes a directory that is open; the path is for messages.
    pub fn from_fd(root: OwnedFd, path: &Path) -> Self {
        Beneath { root, path: path.to_owned() }
    }

    /// Opens a path that has no symbolic link in it.
    pub fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, PathError> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        open_strictly(self.root.as_fd(), relative, flags, mode)
            .at("open", &self.path.join(relative))
    }

    /// Opens a path as a process sees it whose root directory this is: symbolic links are
    /// followed and end up beneath the root, `..` stops at it.
    pub fn open_as_root(
        &self,
        path: &Path,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, PathError> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        open_as_root(self.root.as_fd(), relative, flags, mode).at("open", &self.path.join(relative))
    }

    /// Opens a path whose symbolic links and `..` stay beneath the directory; `EXDEV` if they do not.
    pub fn open_within(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        retry(|| openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, resolve))
    }

    /// Makes a directory and its missing parents, and opens it. Symbolic links are followed as in
    /// [`open_as_root`](Self::open_as_root); one that points to nothing is an error.
    ///
    /// What `finish` does is done to those that were made here, and to none that somebody else made
    /// meanwhile or put in their place.
    pub fn mkdir_all(
        &self,
        path: &Path,
        mode: Mode,
        finish: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result<OwnedFd, PathError> {
        let open = |path: &Path| open_as_root(self.root.as_fd(), path, DIRECTORY, Mode::empty());
        let mut reached = PathBuf::from(".");
        let mut directory = open(&reached).at("open", &self.path)?;
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
                        // A dangling link is found out by opening it again.
                        Err(Errno::EXIST) => open(&reached),
                        Err(error) => Err(error),
                    }
                }
                opened => opened,
            }
            .at("make the directory", &self.path.join(&reached))?;
        }
        Ok(directory)
    }

    /// Returns the directory itself.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the directory itself, to keep.
    pub fn into_fd(self) -> OwnedFd {
        self.root
    }

    /// Returns the path that the directory was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a path beneath a directory that has no symbolic link in it and crosses no mount.
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

/// Opens a directory that was made just now, no other kind of file that has its name by now.
fn open_made(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_strictly(directory, name, DIRECTORY, Mode::empty())
}

/// Returns whether a directory is still as one of ours is made: whoever put another one in its place is somebody
/// else, or has put something into it.
fn is_new(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = fstat(directory)?;
    let is_own = stat.st_uid == geteuid().as_raw();
    let mut names = Dir::read_from(directory)?;
    let is_dot = |name: &CStr| name == c"." || name == c"..";
    let is_empty = names.all(|entry| entry.is_ok_and(|entry| is_dot(entry.file_name())));
    Ok(is_own && is_empty)
}

/// Opens a path as a process sees it whose root directory this is.
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

pub(super) fn retry(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
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

    fn tree() -> (tempfile::TempDir, Beneath) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/a")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        symlink("../outside", dir.path().join("root/out")).unwrap();
        symlink(dir.path().join("outside"), dir.path().join("root/absolute")).unwrap();
        symlink("/a", dir.path().join("root/in")).unwrap();
        let beneath = Beneath::new(&dir.path().join("root")).unwrap();
        (dir, beneath)
    }

    #[test]
    fn symbolic_links_are_refused_or_stay_beneath_the_root() {
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
    fn directories_are_made_beneath_the_root() {
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
    fn only_directories_that_were_made_are_finished() {
        let (dir, root) = tree();
        let path = |name: &str| dir.path().join("root").join(name);
        let finished = std::cell::RefCell::new(Vec::new());
        let finish = |made: BorrowedFd<'_>| {
            finished.borrow_mut().push(fstat(made)?.st_ino);
            // Somebody is faster with the next one.
            let _ = fs::create_dir(path("a/x/y"));
            Ok(())
        };
        root.mkdir_all("in/x/y/z".as_ref(), Mode::RWXU, finish).unwrap();
        let made = ["a/x", "a/x/y/z"]
            .map(|name| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path(name)).unwrap()));
        assert_eq!(*finished.borrow(), made);
    }

    #[test]
    fn what_somebody_put_in_place_of_a_new_directory_is_not_new() {
        let (dir, root) = tree();
        assert!(is_new(open_made(root.as_fd(), "a".as_ref()).unwrap().as_fd()).unwrap());
        assert!(!is_new(root.as_fd()).unwrap(), "it holds something");
        for name in ["in", "out"] {
            open_made(root.as_fd(), name.as_ref()).unwrap_err();
        }
        if geteuid().is_root() {
            // Nobody else can have directories of others made.
            std::os::unix::fs::chown(dir.path().join("root/a"), Some(54321), None).unwrap();
            assert!(!is_new(open_made(root.as_fd(), "a".as_ref()).unwrap().as_fd()).unwrap());
        }
    }
}
