//! Removing trees that others have shaped: of any depth, with any names, sealed or not.
//!
//! Few descriptors are open at a time, the stack does not grow, and no path is longer than a name. What
//! cannot be removed does not keep the rest: all else goes, and the first error is told.

mod seal;

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use tracing::debug;

use super::descent::{Bounds, Descent, Lister, Pending, look};
use super::fs::{PathContext as _, PathError};

/// How often a tree is gone through again that somebody changes meanwhile.
const MAX_PASSES: usize = 128;

/// How long it may take. Whoever makes entries in a directory is quicker than who removes them: what is
/// there then is left to a later try, as if it could not be removed.
const LONGEST: Duration = Duration::from_secs(600);

/// How many bytes of names of a directory, and of all directories on the way, may wait to be gone into;
/// then the directory is read again.
const WAITING: Bounds = Bounds { here: 16 << 10, all: 16 << 20 };

/// How much of a path is remembered for messages.
const MAX_PATH_BYTES: usize = 4096;

/// Removes what has this name in a directory, with everything below it, however deep. Nothing there is
/// no error.
///
/// What is mounted there is not looked into and stays, with the directories that lead to it. What is
/// immutable or may only be appended to is made neither, if the caller may do that.
pub fn remove_all(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let tree = Tree { name, shown: Path::new(""), end: Instant::now() + LONGEST };
    remove_at(parent, &tree).map_err(|error| error.source)
}

/// Removes what a path leads to, as [`remove_all`] does; the error says which part of it stays. Symbolic
/// links in its last component are not followed.
pub fn remove_tree(path: &Path) -> Result<(), PathError> {
    debug!(path = %path.display(), "remove a tree");
    remove_tree_until(path, Instant::now() + LONGEST)
}

fn remove_tree_until(path: &Path, end: Instant) -> Result<(), PathError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput).at("remove", path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty()) {
        Ok(parent) => remove_at(parent.as_fd(), &Tree { name: name.as_bytes(), shown: path, end }),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(PathError::new("remove", path, error)),
    }
}

/// What is to be removed.
struct Tree<'a> {
    name: &'a [u8],
    shown: &'a Path,
    /// When it is given up.
    end: Instant,
}

/// Does the same in a directory that is open.
fn remove_at(
    parent: BorrowedFd<'_>,
    &Tree { name, shown, end }: &Tree<'_>,
) -> Result<(), PathError> {
    let at = |error: Errno| PathError::new("remove", shown, error);
    let no_file = match seal::unlink_top(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Where nothing may be removed, this is said of directories too, which can be emptied.
        Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
        Err(error) => return Err(at(error)),
    };
    for _ in 0..MAX_PASSES {
        let top = match seal::open_top(parent, name) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(at(no_file)),
            Err(error) => return Err(at(error)),
        };
        // Somebody moved or made something in it meanwhile.
        if let Emptied::Changed = sweep(top.as_fd(), shown, end)? {
            continue;
        }
        match seal::unlink_top(parent, name, AtFlags::REMOVEDIR) {
            // Somebody made something in it meanwhile.
            Err(Errno::NOTEMPTY) => {}
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(at(error)),
        }
    }
    Err(at(Errno::NOTEMPTY))
}

enum Emptied {
    Yes,
    /// Somebody changed it meanwhile: it is to be gone through again.
    Changed,
}

/// Removes everything in a directory.
pub(super) fn empty(directory: BorrowedFd<'_>) -> io::Result<()> {
    let end = Instant::now() + LONGEST;
    for _ in 0..MAX_PASSES {
        let emptied = sweep(directory, Path::new(""), end).map_err(|error| error.source)?;
        if let Emptied::Yes = emptied {
            return Ok(());
        }
    }
    Err(Errno::STALE.into())
}

/// Goes through a directory once, and removes everything in it that can be removed.
fn sweep(top: BorrowedFd<'_>, shown: &Path, end: Instant) -> Result<Emptied, PathError> {
    let descent = Descent::new(top, Level::default()).at("remove", shown)?;
    let trail = Trail { path: Vec::new(), first: None };
    let mut sweep = Sweep { descent, trail, lister: Lister::new(WAITING), is_changed: false };
    let emptied = sweep.run(end);
    match sweep.trail.first {
        None => Ok(emptied),
        Some((path, error)) => Err(PathError::new("remove", &shown.join(path), error)),
    }
}

/// A directory that is being emptied.
#[derive(Default)]
struct Level {
    /// What is still to be removed; the last directory that waits is being emptied.
    pending: Pending,
    /// Whether something in it cannot be removed.
    is_kept: bool,
    /// The length of the path of the one above.
    path_length: usize,
}

impl Level {
    /// Has the rest be read from the beginning, if nothing that was read is there any more: where the rest
    /// is then is not the same everywhere.
    fn read_on(&mut self) {
        let Pending { names, position } = &mut self.pending;
        if names.last().is_none() && position.is_some() && !self.is_kept {
            *position = Some(0);
        }
    }
}

struct Sweep<'a> {
    descent: Descent<'a, Level>,
    trail: Trail,
    lister: Lister,
    is_changed: bool,
}

impl Sweep<'_> {
    fn run(&mut self, end: Instant) -> Emptied {
        loop {
            if Instant::now() > end {
                self.trail.failed(c"", Errno::TIMEDOUT);
                return Emptied::Changed;
            }
            let (_, level) = self.descent.here();
            if level.pending.names.last().is_some() {
                self.enter();
            } else if level.pending.position.is_some() {
                self.read();
            } else if let Some(emptied) = self.leave() {
                return emptied;
            }
        }
    }

    /// Goes into the directory that waits last.
    fn enter(&mut self) {
        let (here, level) = self.descent.here();
        let Some(name) = level.pending.names.last() else { return };
        let found =
            seal::open(here, name).and_then(|directory| Ok((look(directory.as_fd())?, directory)));
        let error = match found {
            Ok((found, directory)) => {
                let path_length = self.trail.enter(name);
                self.descent.enter(directory, &found, Level { path_length, ..Level::default() });
                return;
            }
            // It has become something else, or nothing.
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {
                seal::unlink(here, name, AtFlags::empty()).err()
            }
            Err(error) => Some(error),
        };
        if let Some(error) = error.filter(|error| *error != Errno::NOENT) {
            self.trail.failed(name, error);
            level.is_kept = true;
        }
        self.lister.pop(&mut level.pending);
    }

    /// Removes what is no directory, and takes note of what is one.
    fn read(&mut self) {
        let (here, level) = self.descent.here();
        let Level { pending, is_kept, .. } = level;
        let trail = &mut self.trail;
        let listed = self.lister.list(here, pending, |name, kind| {
            let removed = match kind {
                FileType::Directory => Err(Errno::ISDIR),
                _ => seal::unlink(here, name, AtFlags::empty()),
            };
            match removed {
                Err(Errno::ISDIR) => return true,
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    trail.failed(name, error);
                    *is_kept = true;
                }
            }
            false
        });
        if let Err(error) = listed {
            self.trail.failed(c"", error);
            level.is_kept = true;
        }
        level.read_on();
    }

    /// Removes the directory that is empty by now, and goes on in the one above. Returns how it went when
    /// there is none.
    fn leave(&mut self) -> Option<Emptied> {
        let left = match self.descent.leave() {
            Ok(Some(left)) => left,
            Ok(None) if self.is_changed => return Some(Emptied::Changed),
            Ok(None) => return Some(Emptied::Yes),
            Err(Errno::STALE) => return Some(Emptied::Changed),
            Err(error) => {
                self.trail.failed(c"", error);
                return Some(Emptied::Changed);
            }
        };
        self.trail.path.truncate(left.path_length);
        let (here, level) = self.descent.here();
        let name = level.pending.names.last().unwrap_or_default();
        let removed = match left.is_kept {
            true => Ok(()),
            false => seal::unlink(here, name, AtFlags::REMOVEDIR),
        };
        level.is_kept |= left.is_kept;
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            // Somebody made something in it meanwhile: it stays for the next time.
            Err(Errno::NOTEMPTY) if self.trail.first.is_none() => {
                self.is_changed = true;
                level.is_kept = true;
            }
            Err(error) => {
                self.trail.failed(name, error);
                level.is_kept = true;
            }
        }
        self.lister.pop(&mut level.pending);
        level.read_on();
        None
    }
}

/// Where it is, and what went wrong first.
struct Trail {
    /// That of the directory it is in, from the top, with `/` at the end.
    path: Vec<u8>,
    first: Option<(PathBuf, Errno)>,
}

impl Trail {
    /// Returns the length of the path so far.
    fn enter(&mut self, name: &CStr) -> usize {
        let length = self.path.len();
        if length < MAX_PATH_BYTES {
            self.path.extend_from_slice(name.to_bytes());
            self.path.push(b'/');
        }
        length
    }

    fn failed(&mut self, name: &CStr, error: Errno) {
        if self.first.is_none() {
            let path = [&self.path, name.to_bytes()].concat();
            self.first = Some((PathBuf::from(OsStr::from_bytes(&path)), error));
        }
    }
}

#[cfg(test)]
mod tests;
