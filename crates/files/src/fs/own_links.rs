//! Path resolution that follows no symbolic link of another user.
//!
//! In a directory such as `/tmp` a name may be another user's link to a file that only this user can write. The
//! kernel rejects such links at best in sticky directories (`fs.protected_symlinks`), so each component of the
//! path is opened, and a link is checked and read by the same descriptor.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, mkdirat, openat, readlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::super::beneath::PATH_ONLY;
use super::replace::{MAX_SYMLINKS, ReplaceError};
use super::{PathContext as _, PathError, status};

/// Opens a directory for reading. Only links of root and of this user are followed.
pub fn open_directory(path: &Path) -> Result<OwnedFd, ReplaceError> {
    let (above, name) = find(path)?;
    Ok(open_in(&above, &name).with_path("open", path)?)
}

/// Creates a directory with this mode, regardless of the umask, unless it exists. Only links of root and of
/// this user are followed.
pub fn make_directory(path: &Path, mode: u32) -> Result<(), ReplaceError> {
    let (above, name) = find(path)?;
    match mkdirat(&above, &name, Mode::RWXU) {
        Err(Errno::EXIST) => return Ok(()),
        result => result.with_path("create the directory", path)?,
    }
    let made = open_in(&above, &name).with_path("open", path)?;
    Ok(fchmod(&made, Mode::from_raw_mode(mode)).with_path("set the mode of", path)?)
}

/// Creates a directory and its missing parents with this mode. Only links of root and of this user are
/// followed, so that no directory is created where another user's link points.
pub fn make_directories(path: &Path, mode: u32) -> Result<(), ReplaceError> {
    let above: Vec<_> = path.ancestors().collect();
    above.into_iter().rev().try_for_each(|path| make_directory(path, mode))
}

fn open_in(above: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| openat(&above, name, flags, Mode::empty()))
}

/// Resolves a path to its parent directory and the name of its last component, which is no symbolic link and
/// need not exist.
pub fn find(path: &Path) -> Result<(OwnedFd, OsString), ReplaceError> {
    let mut way =
        PathProgress { directory: start(path).with_path("open", path)?, read: PathBuf::new() };
    let mut rest = VecDeque::new();
    push(&mut rest, path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let is_last = rest.is_empty();
        let found = match openat(&way.directory, &name, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) if is_last => return Ok((way.directory, name)),
            found => found.with_path("open", path)?,
        };
        let stat = status(found.as_fd()).with_path("inspect", path)?;
        way.read.push(&name);
        if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
            if is_last {
                return Ok((way.directory, name));
            }
            way.directory = found;
            continue;
        }
        if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
            return Err(ReplaceError::ForeignLink { path: way.read, owner: stat.st_uid });
        }
        links += 1;
        if links > MAX_SYMLINKS {
            return Err(PathError::new("open", path, Errno::LOOP).into());
        }
        let target =
            readlinkat(&found, c"", Vec::new()).with_path("read the symlink", &way.read)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        way.read.pop();
        if target.is_absolute() {
            way = PathProgress {
                directory: start(&target).with_path("open", path)?,
                read: PathBuf::new(),
            };
        }
        push(&mut rest, &target);
    }
    // The root, or the working directory.
    Ok((way.directory, OsString::from(".")))
}

/// Progress of resolving a path.
struct PathProgress {
    directory: OwnedFd,
    /// The part of the path that was resolved, for messages.
    read: PathBuf,
}

fn start(path: &Path) -> rustix::io::Result<OwnedFd> {
    let name = if path.is_absolute() { c"/" } else { c"." };
    openat(CWD, name, PATH_ONLY, Mode::empty())
}

/// Inserts the components of a path before the unresolved ones.
fn push(rest: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(_) | Component::ParentDir => {
                rest.push_front(part.as_os_str().to_owned());
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    use super::*;

    /// Creates a symbolic link of a user that no system has; works only as root.
    fn create_foreign_link(target: &str, link: &Path) {
        symlink(target, link).unwrap();
        lchown(link, Some(54321), None).unwrap();
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        dir
    }

    #[test]
    fn own_links_are_followed_anywhere() {
        let dir = tree();
        let at = |name: &str| dir.path().join(name);
        symlink("../a/./b/..", at("a/up")).unwrap();
        symlink(at("a/up"), at("link")).unwrap();
        for path in ["link/b", "a/up/b", "link/../a/b"] {
            let found = open_directory(&at(path)).unwrap();
            let (found, expected) =
                (rustix::fs::fstat(&found).unwrap(), fs::metadata(at("a/b")).unwrap());
            assert_eq!(found.st_ino, std::os::unix::fs::MetadataExt::ino(&expected), "{path}");
        }
        symlink("loop", at("loop")).unwrap();
        for path in ["loop", "loop/x", "missing/x"] {
            find(&at(path)).unwrap_err();
        }
        assert_eq!(find(&at("link/new")).unwrap().1, "new");
        assert_eq!(find(Path::new("/")).unwrap().1, ".");
    }

    #[test]
    fn links_of_other_users_are_not_followed() {
        let dir = tree();
        let at = |name: &str| dir.path().join(name);
        if !geteuid().is_root() {
            // Only root can give a link away.
            return;
        }
        create_foreign_link("a", &at("foreign"));
        symlink("foreign/b", at("own")).unwrap();
        create_foreign_link("nothing", &at("dangling"));
        for path in ["foreign", "foreign/b", "own", "own/new", "dangling"] {
            let error = open_directory(&at(path)).unwrap_err();
            assert!(matches!(error, ReplaceError::ForeignLink { owner: 54321, .. }), "{path}");
            make_directory(&at(path), 0o755).unwrap_err();
            make_directories(&at(path).join("x/y"), 0o755).unwrap_err();
        }
        make_directory(&at("foreign/new"), 0o755).unwrap_err();
        assert_eq!(fs::read_dir(at("a")).unwrap().count(), 1);
        assert!(!at("nothing").exists());
    }

    #[test]
    fn missing_parent_directories_are_created() {
        let dir = tree();
        let at = |name: &str| dir.path().join(name);
        symlink("a", at("link")).unwrap();
        make_directories(&at("link/../link/c/d"), 0o750).unwrap();
        for made in ["a/c", "a/c/d"] {
            assert_eq!(fs::metadata(at(made)).unwrap().permissions().mode() & 0o777, 0o750);
        }
        make_directories(&at("a/c/d"), 0o700).unwrap();
        make_directories(Path::new(""), 0o700).unwrap();
        make_directories(Path::new("/"), 0o700).unwrap();
        fs::write(at("file"), "").unwrap();
        make_directories(&at("file/x"), 0o700).unwrap_err();
    }

    #[test]
    fn directory_is_created_once_with_its_mode() {
        let dir = tree();
        let path = dir.path().join("new");
        make_directory(&path, 0o751).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o751);
        make_directory(&path, 0o700).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o751);
    }
}
