//! The directory to change: its lock, its entries, and the system calls for each step.

use std::ffi::{CString, OsStr};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::fs::{
    ExpectedFile, FileAt, PathContext, PathError, ReadError, ReplaceError, ReplaceOptions,
    make_directory, open_directory,
};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FlockOperation, flock, linkat, readlinkat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::{ChangeStep, HookChange, ManageError};
use crate::hooks::load::MAX_FILE_BYTES;

/// Maximum wait for the lock of another editor, and the interval between attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// An entry of the directory: no file, the content of a regular file, or the target of a symlink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryContent {
    Absent,
    File(Vec<u8>),
    Link(CString),
}

impl EntryContent {
    pub(super) fn exists(&self) -> bool {
        *self != EntryContent::Absent
    }
}

/// Mode and owner (user ID and group ID) of the files that a change writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteAttributes {
    mode: u32,
    owner: (u32, u32),
}

impl WriteAttributes {
    /// Returns mode 0644, and the user and group of this process.
    pub(super) fn own() -> Self {
        WriteAttributes { mode: 0o644, owner: (geteuid().as_raw(), getegid().as_raw()) }
    }
}

/// The directory to change, open from planning to the last step: replacing the directory, or a
/// symlink in its path, has no effect meanwhile. Only symlinks of root and of this user are
/// followed.
pub struct LockedDirectory<'a> {
    path: &'a Path,
    /// The open directory, or `None` if it does not exist. It holds the lock that excludes other
    /// editors. Consumers need no lock, because each step is atomic.
    opened: Option<OwnedFd>,
}

impl<'a> LockedDirectory<'a> {
    /// Opens a directory and waits for its lock.
    pub(super) fn lock(path: &'a Path) -> Result<Self, ManageError> {
        Self::lock_within(path, LOCK_TIMEOUT)
    }

    fn lock_within(path: &'a Path, time: Duration) -> Result<Self, ManageError> {
        let opened = match open_directory(path) {
            Ok(opened) => opened,
            Err(ReplaceError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                return Ok(LockedDirectory { path, opened: None });
            }
            Err(error) => return Err(error.into()),
        };
        // The lock is on the directory itself, so that no lock file is left in it.
        let end = Instant::now() + time;
        loop {
            match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                // Every user who can read the directory can lock it, too.
                Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(LOCK_POLL),
                Err(Errno::WOULDBLOCK) => {
                    let text = "another process has it locked: `lslocks` lists that process";
                    let error = io::Error::new(io::ErrorKind::TimedOut, text);
                    return Err(PathError::new("lock", path, error).into());
                }
                locked => break locked.with_path("lock", path)?,
            }
        }
        Ok(LockedDirectory { path, opened: Some(opened) })
    }

    /// Reads an entry: a regular file, or the target of a symlink. Another entry is an error.
    pub(super) fn entry(&self, name: &OsStr) -> Result<EntryContent, ManageError> {
        let Some(opened) = &self.opened else { return Ok(EntryContent::Absent) };
        match readlinkat(opened, name, Vec::new()) {
            Ok(target) => return Ok(EntryContent::Link(target)),
            // No symlink, or missing.
            Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(PathError::new("open", &self.path.join(name), error).into()),
        }
        match self.file(opened, name)?.read(MAX_FILE_BYTES) {
            Ok((text, _)) => Ok(EntryContent::File(text)),
            Err(ReadError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                Ok(EntryContent::Absent)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the mode and owner of a file.
    pub(super) fn attributes(&self, name: &OsStr) -> Result<WriteAttributes, ManageError> {
        let path = self.path.join(name);
        let stat = match &self.opened {
            Some(opened) => statat(opened, name, AtFlags::SYMLINK_NOFOLLOW),
            None => Err(Errno::NOENT),
        };
        let stat = stat.with_path("read the status of", &path)?;
        Ok(WriteAttributes { mode: stat.st_mode, owner: (stat.st_uid, stat.st_gid) })
    }

    /// Returns a handle to a file of the open directory, which need not exist.
    fn file(&self, opened: &OwnedFd, name: &OsStr) -> Result<FileAt, PathError> {
        let opened = opened.try_clone().with_path("open", self.path)?;
        Ok(FileAt::in_directory(opened, name, &self.path.join(name)))
    }

    pub(super) fn apply(
        &self,
        step: &ChangeStep,
        attributes: WriteAttributes,
    ) -> Result<(), ManageError> {
        let missing = || PathError::new("open", self.path, Errno::NOENT);
        let here = self.opened.as_ref().ok_or_else(missing)?;
        match step {
            // Directories are created before this one is opened.
            ChangeStep::CreateDirectory { .. } => {}
            ChangeStep::Write { path, replaces, text } => {
                let expected = match replaces {
                    true => ExpectedFile::FileOrLink,
                    false => ExpectedFile::Absent,
                };
                let options = ReplaceOptions {
                    expected,
                    mode: Some(attributes.mode),
                    owner: Some(attributes.owner),
                    ..ReplaceOptions::default()
                };
                self.file(here, name_of(path))?.replace(text, &options)?;
            }
            ChangeStep::Keep { path, kept } => {
                let flags = AtFlags::empty();
                linkat(here, name_of(path), here, name_of(kept), flags).with_path("keep", path)?;
            }
            ChangeStep::Restore { path, kept, replaces: true } => {
                renameat(here, name_of(kept), here, name_of(path)).with_path("restore", path)?;
            }
            ChangeStep::Restore { path, kept, replaces: false } => {
                // Unlike renaming, linking replaces no file. The hook is already active between the
                // two calls.
                let flags = AtFlags::empty();
                linkat(here, name_of(kept), here, name_of(path), flags)
                    .with_path("restore", path)?;
                unlinkat(here, name_of(kept), AtFlags::empty()).with_path("remove", kept)?;
            }
            ChangeStep::Remove { path } => {
                unlinkat(here, name_of(path), AtFlags::empty()).with_path("remove", path)?;
            }
        }
        Ok(())
    }
}

/// Returns the file name in the path of a step.
fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Plans and applies a change of a directory under its lock; creates the directory if necessary.
pub fn change(
    dir: &Path,
    mode: super::EditMode,
    plan: impl Fn(&LockedDirectory<'_>) -> Result<(HookChange, WriteAttributes), ManageError>,
) -> Result<HookChange, ManageError> {
    let mut directory = LockedDirectory::lock(dir)?;
    let (mut planned, mut attributes) = plan(&directory)?;
    let missing = missing_directories(dir).filter(|_| !planned.steps.is_empty());
    let missing: Vec<_> = missing.map(Path::to_owned).collect();
    if mode == super::EditMode::Apply {
        for path in &missing {
            // Regardless of the umask: consumers that run as other users must be able to read it.
            make_directory(path, 0o755)?;
        }
        if directory.opened.is_none() && !planned.steps.is_empty() {
            // The missing directory could not be locked before, so plan again under its lock.
            directory = LockedDirectory::lock(dir)?;
            (planned, attributes) = plan(&directory)?;
        }
        for step in &planned.steps {
            directory.apply(step, attributes)?;
        }
    }
    let made = missing.into_iter().map(|path| ChangeStep::CreateDirectory { path });
    Ok(HookChange { steps: made.chain(planned.steps).collect(), notes: planned.notes })
}

/// Returns the directories to create for `dir` to exist, outermost first.
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
    fn directory_swapped_after_opening_does_not_redirect_changes() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["hooks", "victim"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("a.json"), name).unwrap();
        }
        let path = |name: &str| at("hooks").join(name);
        let steps = vec![
            ChangeStep::Keep { path: path("a.json"), kept: path("kept") },
            ChangeStep::Write { path: path("a.json"), replaces: true, text: b"new".to_vec() },
            ChangeStep::Restore { path: path("b.json"), kept: path("kept"), replaces: false },
            ChangeStep::Remove { path: path("a.json") },
        ];
        change(&at("hooks"), super::super::EditMode::Apply, |directory| {
            assert_eq!(directory.entry("a.json".as_ref())?, EntryContent::File(b"hooks".to_vec()));
            fs::rename(at("hooks"), at("moved")).unwrap();
            std::os::unix::fs::symlink("victim", at("hooks")).unwrap();
            Ok((HookChange { steps: steps.clone(), notes: Vec::new() }, WriteAttributes::own()))
        })
        .unwrap();
        assert_eq!(fs::read(at("moved/b.json")).unwrap(), b"hooks");
        assert!(!at("moved/a.json").exists());
        assert_eq!(fs::read(at("victim/a.json")).unwrap(), b"victim");
        assert_eq!(fs::read_dir(at("victim")).unwrap().count(), 1);
    }

    #[test]
    fn lock_held_by_another_process_is_an_error_after_a_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let _held = LockedDirectory::lock(dir.path()).unwrap();
        let Err(error) = LockedDirectory::lock_within(dir.path(), Duration::from_millis(20)) else {
            panic!("it is locked");
        };
        let said = oci_hooks_files::error::chain(&error);
        assert!(
            said.ends_with("another process has it locked: `lslocks` lists that process"),
            "{said}"
        );
    }

    #[test]
    fn lock_is_exclusive_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lock = LockedDirectory::lock(dir.path()).unwrap();
        let other = File::open(dir.path()).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(lock);
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
