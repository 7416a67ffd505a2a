//! Where a path leads if no symbolic link of somebody else has a say in it.
//!
//! In a directory such as `/tmp` a name may be anybody's link to a file that only we can write. The
//! kernel refuses those at best in some directories (`fs.protected_symlinks`), so each part of the
//! path is opened, and a link looked at once, by its descriptor.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, mkdirat, openat, readlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::replace::{MAX_SYMLINKS, ReplaceError};
use super::{PathContext as _, PathError, status};

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory to work in it. Only links of root and of this user are followed.
pub fn open_directory(path: &Path) -> Result<OwnedFd, ReplaceError> {
    let (above, name) = find(path)?;
    Ok(open_in(&above, &name).at("open", path)?)
}

/// Makes a directory of this mode, whatever the umask is, unless it is there. Only links of root and of
/// this user are followed.
pub fn make_directory(path: &Path, mode: u32) -> Result<(), ReplaceError> {
    let (above, name) = find(path)?;
    match mkdirat(&above, &name, Mode::RWXU) {
        Err(Errno::EXIST) => return Ok(()),
        result => result.at("create directory", path)?,
    }
    let made = open_in(&above, &name).at("open", path)?;
    Ok(fchmod(&made, Mode::from_raw_mode(mode)).at("set the mode of", path)?)
}

/// Makes a directory, and those above it that are missing, with this mode. Only links of root and of
/// this user are followed, so that nothing is made where somebody else's lead.
pub fn make_directories(path: &Path, mode: u32) -> Result<(), ReplaceError> {
    let above: Vec<_> = path.ancestors().collect();
    above.into_iter().rev().try_for_each(|path| make_directory(path, mode))
}

fn open_in(above: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| openat(&above, name, flags, Mode::empty()))
}

/// Returns the directory that a path leads to a name in, and the name, which is no symbolic link and
/// need not be there.
pub fn find(path: &Path) -> Result<(OwnedFd, OsString), ReplaceError> {
    let mut way = Way { directory: start(path).at("open", path)?, read: PathBuf::new() };
    let mut rest = VecDeque::new();
    push(&mut rest, path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let is_last = rest.is_empty();
        let found = match openat(&way.directory, &name, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) if is_last => return Ok((way.directory, name)),
            found => found.at("open", path)?,
        };
        let stat = status(found.as_fd()).at("look at", path)?;
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
        let target = readlinkat(&found, c"", Vec::new()).at("read the link", &way.read)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        way.read.pop();
        if target.is_absolute() {
            way = Way { directory: start(&target).at("open", path)?, read: PathBuf::new() };
        }
        push(&mut rest, &target);
    }
    // The root, or the working directory.
    Ok((way.directory, OsString::from(".")))
}

/// How far a path was followed.
struct Way {
    directory: OwnedFd,
    /// What was read of it, for messages.
    read: PathBuf,
}

fn start(path: &Path) -> rustix::io::Result<OwnedFd> {
    let name = if path.is_absolute() { c"/" } else { c"." };
    openat(CWD, name, PATH_ONLY, Mode::empty())
}

/// Puts the parts of a path in front of those that are still to be followed.
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

    /// Leaves a symbolic link of a user that no system has; only root can.
    fn foreign_link(target: &str, link: &Path) {
        symlink(target, link).unwrap();
        lchown(link, Some(54321), None).unwrap();
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        dir
    }

    #[test]
    fn own_links_are_followed_wherever_they_are() {
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
    fn a_link_of_somebody_else_is_not_followed_wherever_it_is() {
        let dir = tree();
        let at = |name: &str| dir.path().join(name);
        if !geteuid().is_root() {
            // Nobody else can give a link away.
            return;
        }
        foreign_link("a", &at("foreign"));
        symlink("foreign/b", at("own")).unwrap();
        foreign_link("nothing", &at("dangling"));
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
    fn directories_are_made_with_those_above_them() {
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
    fn a_directory_is_made_once_with_its_mode() {
        let dir = tree();
        let path = dir.path().join("new");
        make_directory(&path, 0o751).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o751);
        make_directory(&path, 0o700).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o751);
    }
}
