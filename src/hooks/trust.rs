//! Whether somebody else could change a file: a hook runs with the rights of the container engine, and
//! so does whatever others put in its place.
//!
//! [`check`] walks a path from the root, through symbolic links, and looks at each file and directory
//! on the way: all must belong to trusted users, and nobody else may write to them. Then no one else
//! can swap the file either, neither before it is used nor while it is. Access control lists show in the
//! group's permissions and need no look of their own.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::sys::fs::{PathContext, PathError};

/// How many symbolic links in a row are followed, as in the kernel.
const MAX_SYMLINKS: usize = 40;

/// Who is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustOptions {
    /// Users that may own and write to files: root, and who runs the container engine.
    pub users: Vec<u32>,
    /// Groups that may write to files.
    pub groups: Vec<u32>,
}

impl Default for TrustOptions {
    /// Trusts root alone.
    fn default() -> Self {
        TrustOptions { users: vec![0], groups: vec![0] }
    }
}

impl TrustOptions {
    /// Trusts root and one more user, and that user's own group if it is named by the same number, as
    /// distributions do that give each user a group.
    pub fn root_and(user: u32, group: u32) -> Self {
        let mut options = TrustOptions::default();
        if user != 0 {
            options.users.push(user);
            if group == user {
                options.groups.push(group);
            }
        }
        options
    }
}

/// Why a path is not to be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustProblem {
    /// Users that are not trusted may write to it.
    #[error("{} is writable by {} (mode {mode:04o})", path.display(), writers(*mode))]
    Writable {
        /// The file or directory on the way.
        path: PathBuf,
        /// Its mode, permission bits only.
        mode: u32,
    },
    /// A user that is not trusted owns it.
    #[error("{} belongs to user {owner}", path.display())]
    Owner {
        /// The file, directory or symbolic link on the way.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// More symbolic links than the kernel follows.
    #[error("{} leads through too many symbolic links", path.display())]
    TooManyLinks {
        /// The path that was checked.
        path: PathBuf,
    },
    /// It cannot be looked at.
    #[error(transparent)]
    Lookup(#[from] PathError),
}

impl TrustProblem {
    /// Returns what is not to be trusted: the file itself or something on the way to it.
    pub fn path(&self) -> &Path {
        match self {
            TrustProblem::Writable { path, .. }
            | TrustProblem::Owner { path, .. }
            | TrustProblem::TooManyLinks { path } => path,
            TrustProblem::Lookup(error) => &error.path,
        }
    }

    /// Tells if the file, or something on the way to it, does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, TrustProblem::Lookup(error) if error.source.kind() == io::ErrorKind::NotFound)
    }
}

fn writers(mode: u32) -> &'static str {
    if mode & 0o002 == 0 { "its group" } else { "everyone" }
}

/// Checks a file or directory and all that leads to it.
///
/// A relative path starts at the working directory.
///
/// ```
/// use std::path::Path;
/// use oci_hooks::hooks::trust::{self, TrustOptions};
///
/// trust::check(Path::new("/bin/sh"), &TrustOptions::default())?;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("hook");
/// # std::fs::write(&path, "").unwrap();
/// # use std::os::unix::fs::PermissionsExt;
/// # std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
/// assert!(trust::check(&path, &TrustOptions::default()).is_err());
/// # Ok::<(), trust::TrustProblem>(())
/// ```
pub fn check(path: &Path, options: &TrustOptions) -> Result<(), TrustProblem> {
    Checker::new(options.clone()).check(path)
}

/// Checks many paths; what they have in common is looked at once.
#[derive(Debug)]
pub struct Checker {
    options: TrustOptions,
    /// Directories found good, by their path without symbolic links.
    good: HashSet<PathBuf>,
}

impl Checker {
    /// Starts with nothing looked at.
    pub fn new(options: TrustOptions) -> Self {
        Checker { options, good: HashSet::new() }
    }

    /// Checks a file or directory and all that leads to it.
    pub fn check(&mut self, path: &Path) -> Result<(), TrustProblem> {
        let absolute = std::path::absolute(path).at("find", path)?;
        let mut at = PathBuf::from("/");
        let mut links = 0;
        // What is left to walk, the next step last.
        let mut ahead = Vec::new();
        push_components(&mut ahead, &absolute);
        let root = fs::symlink_metadata(&at).at("look up", &at)?;
        self.look_at(&at, &root, ahead.is_empty())?;
        while let Some(step) = ahead.pop() {
            if step == ".." {
                at.pop();
                continue;
            }
            at.push(&step);
            if !ahead.is_empty() && self.good.contains(&at) {
                continue;
            }
            let metadata = fs::symlink_metadata(&at).at("look up", &at)?;
            self.look_at(&at, &metadata, ahead.is_empty())?;
            if metadata.is_symlink() {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(TrustProblem::TooManyLinks { path: path.to_owned() });
                }
                let target = fs::read_link(&at).at("read the symbolic link", &at)?;
                at.pop();
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                push_components(&mut ahead, &target);
            } else if metadata.is_dir() && !ahead.is_empty() {
                self.good.insert(at.clone());
            }
        }
        Ok(())
    }

    /// Judges one step by its owner and mode.
    fn look_at(&self, path: &Path, metadata: &Metadata, is_last: bool) -> Result<(), TrustProblem> {
        if !self.options.users.contains(&metadata.uid()) {
            return Err(TrustProblem::Owner { path: path.to_owned(), owner: metadata.uid() });
        }
        let mode = metadata.mode() & 0o7777;
        let by_group = mode & 0o020 != 0 && !self.options.groups.contains(&metadata.gid());
        let writable = !metadata.is_symlink() && (mode & 0o002 != 0 || by_group);
        // Where the sticky bit is set, as on /tmp, others cannot replace what is not theirs: enough for
        // a directory on the way, whose next step is looked at too, but not for one whose files count.
        let is_sticky = metadata.is_dir() && mode & 0o1000 != 0;
        if writable && (is_last || !is_sticky) {
            return Err(TrustProblem::Writable { path: path.to_owned(), mode });
        }
        Ok(())
    }
}

/// Puts the steps of a path before those that are left.
fn push_components(ahead: &mut Vec<OsString>, path: &Path) {
    ahead.extend(path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A directory that only this user may write to, below the sticky `/tmp`.
    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        set_mode(directory.path(), 0o755);
        directory
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn options() -> TrustOptions {
        let user = rustix::process::geteuid().as_raw();
        TrustOptions::root_and(user, rustix::process::getegid().as_raw())
    }

    fn file(path: &Path, mode: u32) -> PathBuf {
        fs::write(path, "").unwrap();
        set_mode(path, mode);
        path.to_owned()
    }

    #[test]
    fn own_files_are_trusted_below_a_sticky_directory() {
        let directory = directory();
        check(&file(&directory.path().join("hook"), 0o755), &options()).unwrap();
        check(Path::new("/bin/sh"), &TrustOptions::default()).unwrap();
    }

    #[test]
    fn files_and_directories_others_may_write_to_are_not() {
        let directory = directory();
        let path = file(&directory.path().join("hook"), 0o757);
        let problem = check(&path, &options()).unwrap_err();
        assert!(matches!(&problem, TrustProblem::Writable { mode: 0o757, .. }), "{problem}");
        assert_eq!(problem.path(), path);

        set_mode(&path, 0o755);
        let parent = directory.path().join("parent");
        fs::create_dir(&parent).unwrap();
        set_mode(&parent, 0o777);
        let problem = check(&file(&parent.join("hook"), 0o755), &options()).unwrap_err();
        assert_eq!(problem.path(), parent);
    }

    #[test]
    fn a_sticky_directory_is_no_place_for_hook_files() {
        let problem = check(Path::new("/tmp"), &TrustOptions::default()).unwrap_err();
        assert!(matches!(problem, TrustProblem::Writable { mode: 0o1777, .. }));
    }

    #[test]
    fn a_link_does_not_hide_where_it_leads() {
        let directory = directory();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        set_mode(&open, 0o777);
        file(&open.join("hook"), 0o755);
        let link = directory.path().join("link");
        symlink("open/../open/hook", &link).unwrap();
        assert_eq!(check(&link, &options()).unwrap_err().path(), open);

        let circle = directory.path().join("circle");
        symlink("circle", &circle).unwrap();
        let problem = check(&circle, &options()).unwrap_err();
        assert!(matches!(problem, TrustProblem::TooManyLinks { .. }));
    }

    #[test]
    fn what_does_not_exist_is_told_apart() {
        assert!(check(Path::new("/nonexistent/hook"), &options()).unwrap_err().is_not_found());
    }

    #[test]
    fn a_group_may_write_only_if_it_is_trusted() {
        let directory = directory();
        let path = file(&directory.path().join("hook"), 0o775);
        let group = fs::metadata(&path).unwrap().gid();
        let mut options = options();
        options.groups = vec![group];
        check(&path, &options).unwrap();
        options.groups = vec![group + 1];
        let problem = check(&path, &options).unwrap_err();
        assert!(problem.to_string().contains("by its group"), "{problem}");
    }

    #[test]
    fn owners_that_are_not_trusted_are_named() {
        let directory = directory();
        let path = file(&directory.path().join("hook"), 0o755);
        let mut options = options();
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(12345), None).unwrap();
        } else {
            options.users = vec![0];
        }
        assert!(matches!(check(&path, &options), Err(TrustProblem::Owner { .. })));
    }

    #[test]
    fn one_checker_looks_at_common_directories_once() {
        let directory = directory();
        let mut checker = Checker::new(options());
        for name in ["a", "b"] {
            checker.check(&file(&directory.path().join(name), 0o755)).unwrap();
        }
        assert!(checker.good.contains(&fs::canonicalize(directory.path()).unwrap()));
    }
}
