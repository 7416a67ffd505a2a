//! The directory that changes go to.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{getegid, geteuid};

use super::{Change, ManageError, Step};
use crate::hooks::load::MAX_FILE_BYTES;
use crate::sys::fs::{
    Expected, FileAt, PathContext, PathError, ReadError, ReplaceError, ReplaceOptions, Symlinks,
};

/// What has a name in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Absent,
    File(Vec<u8>),
}

impl Entry {
    /// Looks at a path. What is neither a file nor absent is an error, a symbolic link as well.
    pub(super) fn at(path: &Path) -> Result<Self, ManageError> {
        let file = match FileAt::open(path, Symlinks::Refuse) {
            Ok(file) => file,
            Err(ReplaceError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                return Ok(Entry::Absent);
            }
            Err(error) => return Err(error.into()),
        };
        match file.read(MAX_FILE_BYTES) {
            Ok((text, _)) => Ok(Entry::File(text)),
            Err(ReadError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                Ok(Entry::Absent)
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn exists(&self) -> bool {
        *self != Entry::Absent
    }
}

/// Whose the files are that a change writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
}

impl Attributes {
    /// Readable by all and owned by whoever runs the program, root as a rule.
    pub(super) fn own() -> Self {
        Attributes { mode: 0o644, owner: (geteuid().as_raw(), getegid().as_raw()) }
    }
}

/// Keeps other editors out until it is dropped. Consumers do not ask for it and need not: they see
/// each step as a whole.
struct Lock {
    _directory: File,
}

impl Lock {
    /// Waits for the lock of a directory; there is none if the directory does not exist.
    fn take(dir: &Path) -> Result<Option<Self>, ManageError> {
        // The directory itself is locked, so that no file is left in it.
        let directory = match File::open(dir) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(PathError::new("open", dir, error).into()),
        };
        flock(&directory, FlockOperation::LockExclusive).at("lock", dir)?;
        Ok(Some(Lock { _directory: directory }))
    }
}

/// Plans a change of a directory and makes it, both under its lock; the directory is made if need be.
pub(super) fn change(
    dir: &Path,
    mode: super::Mode,
    plan: impl Fn() -> Result<(Change, Attributes), ManageError>,
) -> Result<Change, ManageError> {
    let mut lock = Lock::take(dir)?;
    let (mut planned, mut attributes) = plan()?;
    let missing = missing_directories(dir).filter(|_| !planned.steps.is_empty());
    let mut steps: Vec<_> =
        missing.map(|path| Step::CreateDirectory { path: path.to_owned() }).collect();
    if mode == super::Mode::Apply {
        for step in &steps {
            apply(step, attributes)?;
        }
        if lock.is_none() && !planned.steps.is_empty() {
            // Until now nobody could be kept out.
            lock = Lock::take(dir)?;
            (planned, attributes) = plan()?;
        }
        for step in &planned.steps {
            apply(step, attributes)?;
        }
    }
    drop(lock);
    steps.append(&mut planned.steps);
    Ok(Change { steps, notes: planned.notes })
}

/// Returns the directories that must be made for `dir` to be there, outermost first.
fn missing_directories(dir: &Path) -> impl Iterator<Item = &Path> {
    let mut missing: Vec<_> = dir
        .ancestors()
        .take_while(|ancestor| !ancestor.as_os_str().is_empty() && !ancestor.exists())
        .collect();
    missing.reverse();
    missing.into_iter()
}

pub(super) fn apply(step: &Step, attributes: Attributes) -> Result<(), ManageError> {
    match step {
        Step::CreateDirectory { path } => {
            match fs::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
                result => result.at("create directory", path)?,
            }
            // Whatever the umask says, consumers that run as others must be able to read it.
            fs::set_permissions(path, Permissions::from_mode(0o755)).at("set the mode of", path)?;
        }
        Step::Write { path, replaces, text } => {
            let file = FileAt::open(path, Symlinks::Refuse)?;
            let expected = match replaces {
                true => Expected::Unchanged(file.read(MAX_FILE_BYTES)?.1),
                false => Expected::Absent,
            };
            let options = ReplaceOptions {
                expected,
                mode: Some(attributes.mode),
                owner: Some(attributes.owner),
                ..ReplaceOptions::default()
            };
            file.replace(text, &options)?;
        }
        Step::Keep { path, kept } => fs::hard_link(path, kept).at("keep", path)?,
        Step::Restore { path, kept, replaces: true } => {
            fs::rename(kept, path).at("restore", path)?;
        }
        Step::Restore { path, kept, replaces: false } => {
            // Unlike renaming this replaces nothing; the hook is in force between the two calls.
            fs::hard_link(kept, path).at("restore", path)?;
            fs::remove_file(kept).at("remove", kept)?;
        }
        Step::Remove { path } => fs::remove_file(path).at("remove", path)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directories_are_found_outermost_first() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let missing: Vec<_> = missing_directories(&dir).collect();
        assert_eq!(missing, [root.path().join("a"), dir.clone()]);
        assert_eq!(missing_directories(root.path()).count(), 0);
    }

    #[test]
    fn lock_is_exclusive_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap().unwrap();
        let other = File::open(dir.path()).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(lock);
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
