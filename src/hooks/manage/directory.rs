//! The directory that changes go to.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FlockOperation, flock, linkat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::{Change, ManageError, Step};
use crate::hooks::load::MAX_FILE_BYTES;
use crate::sys::fs::{
    Expected, FileAt, PathContext, PathError, ReadError, ReplaceError, ReplaceOptions,
    make_directory, open_directory,
};

/// How long another editor may hold the directory, and how often that is looked at.
const LOCK_WITHIN: Duration = Duration::from_secs(60);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// What has a name in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Absent,
    File(Vec<u8>),
}

impl Entry {
    pub(super) fn exists(&self) -> bool {
        *self != Entry::Absent
    }
}

/// Whose the files are that a change writes.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    mode: u32,
    owner: (u32, u32),
}

impl Attributes {
    /// Readable by all and owned by whoever runs the program, root as a rule.
    pub(super) fn own() -> Self {
        Attributes { mode: 0o644, owner: (geteuid().as_raw(), getegid().as_raw()) }
    }
}

/// The directory that is changed, open from the first look at it to the last step: who swaps it, or a
/// link on the way to it, changes nothing. Only links of root and of this user lead to it.
pub struct Directory<'a> {
    path: &'a Path,
    /// None if there is none. Its lock keeps other editors out until it is dropped. Consumers do not
    /// ask for it and need not: they see each step as a whole.
    opened: Option<OwnedFd>,
}

impl<'a> Directory<'a> {
    /// Opens a directory and waits for its lock.
    pub(super) fn lock(path: &'a Path) -> Result<Self, ManageError> {
        Self::lock_within(path, LOCK_WITHIN)
    }

    fn lock_within(path: &'a Path, time: Duration) -> Result<Self, ManageError> {
        let opened = match open_directory(path) {
            Ok(opened) => opened,
            Err(ReplaceError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                return Ok(Directory { path, opened: None });
            }
            Err(error) => return Err(error.into()),
        };
        // The directory itself is locked, so that no file is left in it.
        let end = Instant::now() + time;
        loop {
            match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                // Every user who can read the directory can lock it, too.
                Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(LOCK_POLL),
                Err(Errno::WOULDBLOCK) => {
                    let text = "another process keeps it locked: `lslocks` names it";
                    let error = io::Error::new(io::ErrorKind::TimedOut, text);
                    return Err(PathError::new("lock", path, error).into());
                }
                locked => break locked.at("lock", path)?,
            }
        }
        Ok(Directory { path, opened: Some(opened) })
    }

    /// Looks at a name. What is neither a file nor absent is an error, a symbolic link as well.
    pub(super) fn entry(&self, name: &OsStr) -> Result<Entry, ManageError> {
        let Some(file) = self.file(name)? else { return Ok(Entry::Absent) };
        match file.read(MAX_FILE_BYTES) {
            Ok((text, _)) => Ok(Entry::File(text)),
            Err(ReadError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                Ok(Entry::Absent)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the mode and owner of a file.
    pub(super) fn attributes(&self, name: &OsStr) -> Result<Attributes, ManageError> {
        let path = self.path.join(name);
        let stat = match &self.opened {
            Some(opened) => statat(opened, name, AtFlags::SYMLINK_NOFOLLOW),
            None => Err(Errno::NOENT),
        };
        let stat = stat.at("read the status of", &path)?;
        Ok(Attributes { mode: stat.st_mode, owner: (stat.st_uid, stat.st_gid) })
    }

    /// Returns a file by its name, be it there or not; none if the directory is not.
    fn file(&self, name: &OsStr) -> Result<Option<FileAt>, ManageError> {
        let Some(opened) = &self.opened else { return Ok(None) };
        let opened = opened.try_clone().at("open", self.path)?;
        Ok(Some(FileAt::in_directory(opened, name, &self.path.join(name))?))
    }

    pub(super) fn apply(&self, step: &Step, attributes: Attributes) -> Result<(), ManageError> {
        let missing = || PathError::new("open", self.path, Errno::NOENT);
        let here = self.opened.as_ref().ok_or_else(missing)?;
        match step {
            // They are made before there is anything to open.
            Step::CreateDirectory { .. } => {}
            Step::Write { path, replaces, text } => {
                let file = self.file(name_of(path))?.ok_or_else(missing)?;
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
            Step::Keep { path, kept } => {
                let flags = AtFlags::empty();
                linkat(here, name_of(path), here, name_of(kept), flags).at("keep", path)?;
            }
            Step::Restore { path, kept, replaces: true } => {
                renameat(here, name_of(kept), here, name_of(path)).at("restore", path)?;
            }
            Step::Restore { path, kept, replaces: false } => {
                // Unlike renaming this replaces nothing; the hook is in force between the two calls.
                let flags = AtFlags::empty();
                linkat(here, name_of(kept), here, name_of(path), flags).at("restore", path)?;
                unlinkat(here, name_of(kept), AtFlags::empty()).at("remove", kept)?;
            }
            Step::Remove { path } => {
                unlinkat(here, name_of(path), AtFlags::empty()).at("remove", path)?;
            }
        }
        Ok(())
    }
}

/// Returns the name in the directory of what a step is about.
fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Plans a change of a directory and makes it, both under its lock; the directory is made if need be.
pub fn change(
    dir: &Path,
    mode: super::Mode,
    plan: impl Fn(&Directory<'_>) -> Result<(Change, Attributes), ManageError>,
) -> Result<Change, ManageError> {
    let mut directory = Directory::lock(dir)?;
    let (mut planned, mut attributes) = plan(&directory)?;
    let missing = missing_directories(dir).filter(|_| !planned.steps.is_empty());
    let missing: Vec<_> = missing.map(Path::to_owned).collect();
    if mode == super::Mode::Apply {
        for path in &missing {
            // Whatever the umask says, consumers that run as others must be able to read it.
            make_directory(path, 0o755)?;
        }
        if directory.opened.is_none() && !planned.steps.is_empty() {
            // Until now nobody could be kept out.
            directory = Directory::lock(dir)?;
            (planned, attributes) = plan(&directory)?;
        }
        for step in &planned.steps {
            directory.apply(step, attributes)?;
        }
    }
    let made = missing.into_iter().map(|path| Step::CreateDirectory { path });
    Ok(Change { steps: made.chain(planned.steps).collect(), notes: planned.notes })
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

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
    fn a_directory_swapped_after_the_first_look_does_not_redirect_the_steps() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["hooks", "victim"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("a.json"), name).unwrap();
        }
        let path = |name: &str| at("hooks").join(name);
        let steps = vec![
            Step::Keep { path: path("a.json"), kept: path("kept") },
            Step::Write { path: path("a.json"), replaces: true, text: b"new".to_vec() },
            Step::Restore { path: path("b.json"), kept: path("kept"), replaces: false },
            Step::Remove { path: path("a.json") },
        ];
        change(&at("hooks"), super::super::Mode::Apply, |directory| {
            assert_eq!(directory.entry("a.json".as_ref())?, Entry::File(b"hooks".to_vec()));
            fs::rename(at("hooks"), at("moved")).unwrap();
            std::os::unix::fs::symlink("victim", at("hooks")).unwrap();
            Ok((Change { steps: steps.clone(), notes: Vec::new() }, Attributes::own()))
        })
        .unwrap();
        assert_eq!(fs::read(at("moved/b.json")).unwrap(), b"hooks");
        assert!(!at("moved/a.json").exists());
        assert_eq!(fs::read(at("victim/a.json")).unwrap(), b"victim");
        assert_eq!(fs::read_dir(at("victim")).unwrap().count(), 1);
    }

    #[test]
    fn a_lock_that_another_process_keeps_is_an_error_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Directory::lock(dir.path()).unwrap();
        let Err(error) = Directory::lock_within(dir.path(), Duration::from_millis(20)) else {
            panic!("it is locked");
        };
        let said = crate::sys::error::chain(&error);
        assert!(said.ends_with("another process keeps it locked: `lslocks` names it"), "{said}");
    }

    #[test]
    fn lock_is_exclusive_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Directory::lock(dir.path()).unwrap();
        let other = File::open(dir.path()).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(lock);
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
