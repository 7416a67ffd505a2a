//! Who can change what a hook does.
//!
//! Hooks run as root. Whoever can write a hook file, its program, or a directory on the way to either
//! can do as root what they like; podman and CRI-O do not look.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::{HookFile, OciStage, Stage};
use crate::sys::fs::{PathContext, PathError};

/// How many symbolic links in a row are followed, as in the kernel.
const MAX_SYMLINKS: usize = 40;

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustOptions {
    /// Users who may own and write hooks. So may the groups of the same numbers: root's, and where
    /// each user has a group of their own, that.
    pub uids: Vec<u32>,
}

impl Default for TrustOptions {
    /// Trusts root alone.
    fn default() -> Self {
        TrustOptions { uids: vec![0] }
    }
}

impl TrustOptions {
    /// Trusts root, and the user this process runs as.
    pub fn of_process() -> Self {
        TrustOptions { uids: vec![0, rustix::process::geteuid().as_raw()] }
    }
}

/// Why a hook cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// Someone else owns it.
    #[error("{} belongs to user {uid}, who could change it", path.display())]
    Owner {
        /// The file, directory or link.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Others can write it.
    #[error("{} can be changed by {whom} (mode {mode:04o})", path.display())]
    Writable {
        /// The file or directory.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
        /// Who can: `group N` or `everyone`.
        whom: String,
    },
    /// The program is looked up from wherever the runtime happens to be.
    #[error("{} is a relative path", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] PathError),
}

impl TrustError {
    /// Returns the file, directory or link that it is about.
    pub fn path(&self) -> &Path {
        match self {
            TrustError::Owner { path, .. }
            | TrustError::Writable { path, .. }
            | TrustError::Relative { path }
            | TrustError::Lookup(PathError { path, .. }) => path,
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<String> {
        let path = self.path().display();
        Some(match self {
            TrustError::Owner { .. } => format!("chown root: {path}"),
            TrustError::Writable { .. } => format!("chmod go-w {path}"),
            TrustError::Relative { .. } => "write the absolute path of the program".to_owned(),
            TrustError::Lookup(_) => return None,
        })
    }
}

/// Checks a hook's file, its program, and every directory and symbolic link on the way to them.
///
/// Nobody who is not trusted can then swap one of them between this check and its use: for that they
/// would have to write a directory that was checked.
pub fn check(file: &HookFile, options: &TrustOptions) -> Result<(), TrustError> {
    let path = std::path::absolute(&file.path).at("look up", &file.path)?;
    check_path(&path, options)?;
    // The programs of startContainer are the container's own.
    let on_host = |stage: &Stage| *stage != Stage::Oci(OciStage::StartContainer);
    if !file.definition.stages.iter().any(on_host) {
        return Ok(());
    }
    let program = Path::new(&file.definition.hook.path);
    if program.is_relative() {
        return Err(TrustError::Relative { path: program.to_owned() });
    }
    check_path(program, options)
}

/// Checks an absolute path, from the root on.
pub fn check_path(path: &Path, options: &TrustOptions) -> Result<(), TrustError> {
    Checker::new(options.clone()).check_path(path)
}

/// Checks many paths, and looks once at the directories they have in common.
#[derive(Debug)]
pub struct Checker {
    options: TrustOptions,
    /// Directories that were found good, by their path without symbolic links.
    good: HashSet<PathBuf>,
}

impl Checker {
    /// Starts with nothing looked at.
    pub fn new(options: TrustOptions) -> Self {
        Checker { options, good: HashSet::new() }
    }

    /// Checks an absolute path, from the root on.
    pub fn check_path(&mut self, path: &Path) -> Result<(), TrustError> {
        let mut links = 0;
        let mut current = PathBuf::new();
        let mut rest = VecDeque::from([OsString::from("/")]);
        push(&mut rest, path);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                current.pop();
                continue;
            }
            let next = current.join(&name);
            if self.good.contains(&next) {
                current = next;
                continue;
            }
            let status = fs::symlink_metadata(&next).at("look up", &next)?;
            if !self.options.uids.contains(&status.uid()) {
                return Err(TrustError::Owner { path: next, uid: status.uid() });
            }
            if !status.is_symlink() {
                check_mode(&next, &status, &self.options)?;
                if status.is_dir() {
                    self.good.insert(next.clone());
                }
                current = next;
                continue;
            }
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(PathError::new("look up", path, rustix::io::Errno::LOOP).into());
            }
            let target = fs::read_link(&next).at("look up", &next)?;
            if target.is_absolute() {
                current = PathBuf::from("/");
            }
            push(&mut rest, &target);
        }
        Ok(())
    }
}

/// Puts the components of a path in front of those that are still to be walked.
fn push(rest: &mut VecDeque<OsString>, path: &Path) {
    // The root stands in `current` by then; it is checked once, at the start.
    let names = path.components().filter(|c| !matches!(c, Component::RootDir | Component::CurDir));
    let at_root = rest.len() == 1 && rest[0] == "/";
    for (at, name) in names.enumerate() {
        rest.insert(at + usize::from(at_root), name.as_os_str().to_owned());
    }
}

fn check_mode(
    path: &Path,
    status: &fs::Metadata,
    options: &TrustOptions,
) -> Result<(), TrustError> {
    let mode = status.mode() & 0o7777;
    // In a sticky directory, such as /tmp, others cannot touch what is not theirs.
    if status.is_dir() && mode & 0o1000 != 0 {
        return Ok(());
    }
    let whom = if mode & 0o002 != 0 {
        "everyone".to_owned()
    } else if mode & 0o020 != 0 && !options.uids.contains(&status.gid()) {
        format!("group {}", status.gid())
    } else {
        return Ok(());
    };
    Err(TrustError::Writable { path: path.to_owned(), mode, whom })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A directory of the user's own in the sticky `/tmp`.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("a/b/hook");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        chmod(&file, 0o755);
        (temp, file)
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn fault(path: &Path) -> Option<PathBuf> {
        check_path(path, &TrustOptions::of_process()).err().map(|error| error.path().to_owned())
    }

    #[test]
    fn row_26_a_writable_file_or_directory_on_the_way_is_found() {
        let (temp, file) = tree();
        assert_eq!(fault(&file), None);
        for path in [file.clone(), temp.path().join("a"), temp.path().join("a/b")] {
            let mode = fs::metadata(&path).unwrap().mode();
            chmod(&path, 0o777);
            assert_eq!(fault(&file), Some(path.clone()));
            chmod(&path, mode & 0o7777);
        }
    }

    #[test]
    fn row_26_links_are_followed_and_what_they_lead_through_is_checked() {
        let (temp, file) = tree();
        let open = temp.path().join("open");
        fs::create_dir(&open).unwrap();
        chmod(&open, 0o777);
        symlink("../open/../a/b/hook", temp.path().join("a/link")).unwrap();
        assert_eq!(fault(&temp.path().join("a/link")), Some(open.clone()));
        chmod(&open, 0o1777);
        assert_eq!(fault(&temp.path().join("a/link")), None, "sticky");
        symlink("loop", temp.path().join("loop")).unwrap();
        assert!(fault(&temp.path().join("loop")).is_some());
        assert_eq!(fault(&file), None);
    }

    #[test]
    fn a_group_may_write_if_it_has_the_number_of_a_trusted_user() {
        let (_temp, file) = tree();
        chmod(&file, 0o775);
        let group = fs::metadata(&file).unwrap().gid();
        let mut options = TrustOptions::of_process();
        options.uids.push(group);
        check_path(&file, &options).unwrap();
        options.uids.retain(|uid| *uid != group);
        options.uids.push(rustix::process::geteuid().as_raw());
        if !options.uids.contains(&group) {
            assert!(matches!(check_path(&file, &options), Err(TrustError::Writable { .. })));
        }
    }

    #[test]
    fn directories_in_common_are_looked_at_once() {
        let (_temp, file) = tree();
        let mut checker = Checker::new(TrustOptions::of_process());
        checker.check_path(&file).unwrap();
        let directory = file.parent().unwrap();
        assert!(checker.good.contains(directory));
        chmod(directory, 0o777);
        checker.check_path(&file).unwrap();
    }

    #[test]
    fn row_26_a_foreign_owner_is_found() {
        let (_temp, file) = tree();
        let nobody_is_trusted = TrustOptions { uids: vec![] };
        let error = check_path(&file, &nobody_is_trusted).unwrap_err();
        assert_eq!(error.path(), Path::new("/"));
        assert!(matches!(error, TrustError::Owner { .. }), "{error}");
    }
}
