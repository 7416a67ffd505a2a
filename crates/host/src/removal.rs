//! Removes untrusted directory trees: of any depth, with any names, modes and attributes. It follows no symbolic link
//! and enters no mount. All programs remove with it what a job could write.
//!
//! Only a few descriptors are open at a time, the code does not recurse, and paths are never longer than a file name.
//! If a file cannot be removed, all others are, and the first error is returned.

mod seal;

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_files::descent::{
    DirectoryLister, NameBounds, PendingNames, TreeDescent, file_status,
};
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_files::lock::lock_open;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use tracing::debug;

/// Maximum number of passes over a tree that other processes change meanwhile.
const MAX_PASSES: usize = 128;

/// Time limit of a removal. A process that creates entries in a directory is faster than their removal: remaining
/// entries are reported like files that cannot be removed, and left to a later call.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Memory limits for the names of subdirectories that are still to be removed, in bytes. When a
/// limit is reached, the rest of the directory is read later.
const WAITING: NameBounds = NameBounds { here: 16 << 10, all: 16 << 20 };

/// Maximum length of a path in messages.
const MAX_PATH_BYTES: usize = 4096;

/// Removes the entry with this name in a directory, including all files below it, at any depth. Not an error if it does
/// not exist.
///
/// Mount points are not entered and stay, with their parent directories. The immutable and append-only attributes are
/// cleared, if the caller may do that.
pub fn remove_all(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let tree = RemovalTree { name, shown: Path::new(""), end: Instant::now() + TIMEOUT };
    remove_at(parent, &tree).map_err(|error| error.source)
}

/// Removes a path as [`remove_all`] does; the error has the path of the first file that stays. A symbolic link in
/// the last component is not followed.
pub fn remove_tree(path: &Path) -> Result<(), PathError> {
    debug!(path = %path.display(), "remove a tree");
    remove_tree_until(path, Instant::now() + TIMEOUT)
}

/// Removes a directory or any other file that is not regular from the path of a lock file, where
/// damage may have left it, so that the lock file can be created.
///
/// # Errors
///
/// Fails if the file cannot be removed, or if another process holds the lock of the parent
/// directory for longer than `within`.
pub fn repair_lock_file(path: &Path, within: Duration) -> Result<(), PathError> {
    let is_damaged = || fs::symlink_metadata(path).is_ok_and(|found| !found.is_file());
    if is_damaged() {
        // Another call may repair it at the same time, and then hold the new lock.
        let parent = path.parent().unwrap_or(Path::new("/"));
        let opened = File::open(parent).with_path("open", parent)?;
        lock_open(&opened, parent, within)?;
        if is_damaged() {
            remove_tree(path)?;
        }
    }
    Ok(())
}

fn remove_tree_until(path: &Path, end: Instant) -> Result<(), PathError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput).with_path("remove", path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty()) {
        Ok(parent) => {
            remove_at(parent.as_fd(), &RemovalTree { name: name.as_bytes(), shown: path, end })
        }
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(PathError::new("remove", path, error)),
    }
}

struct RemovalTree<'a> {
    name: &'a [u8],
    shown: &'a Path,
    end: Instant,
}

/// Removes a tree in an open directory.
fn remove_at(
    parent: BorrowedFd<'_>,
    &RemovalTree { name, shown, end }: &RemovalTree<'_>,
) -> Result<(), PathError> {
    let at = |error: Errno| PathError::new("remove", shown, error);
    let no_file = match seal::unlink_top(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // `EPERM` is also returned for a directory in a sealed parent; its content can still be removed.
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
        // Another process moved or created entries meanwhile.
        if let PassResult::Changed = sweep(top.as_fd(), shown, end)? {
            continue;
        }
        match seal::unlink_top(parent, name, AtFlags::REMOVEDIR) {
            // Another process created entries meanwhile.
            Err(Errno::NOTEMPTY) => {}
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(at(error)),
        }
    }
    Err(at(Errno::NOTEMPTY))
}

enum PassResult {
    Emptied,
    /// Another process changed the directory meanwhile: another pass is needed.
    Changed,
}

/// Removes the content of a directory.
pub(super) fn remove_content(directory: BorrowedFd<'_>) -> io::Result<()> {
    let end = Instant::now() + TIMEOUT;
    for _ in 0..MAX_PASSES {
        let emptied = sweep(directory, Path::new(""), end).map_err(|error| error.source)?;
        if let PassResult::Emptied = emptied {
            return Ok(());
        }
    }
    Err(Errno::STALE.into())
}

/// Makes one pass over a directory, and removes all entries that can be removed.
fn sweep(top: BorrowedFd<'_>, shown: &Path, end: Instant) -> Result<PassResult, PathError> {
    let descent = TreeDescent::new(top, RemovalLevel::default()).with_path("remove", shown)?;
    let trail = RemovalTrail { path: Vec::new(), first: None };
    let mut sweep =
        RemovalPass { descent, trail, lister: DirectoryLister::new(WAITING), is_changed: false };
    let emptied = sweep.run(end);
    match sweep.trail.first {
        None => Ok(emptied),
        Some((path, error)) => Err(PathError::new("remove", &shown.join(path), error)),
    }
}

/// A directory that is being emptied.
#[derive(Default)]
struct RemovalLevel {
    /// Subdirectories still to remove; the last one is being emptied.
    pending: PendingNames,
    /// Set if an entry could not be removed, so that the directory stays.
    is_kept: bool,
    /// Length of the path of the parent directory, to which the current path is truncated on
    /// leaving.
    path_length: usize,
}

impl RemovalLevel {
    /// Continues listing at the start of the directory if all listed entries were removed: the meaning of a position
    /// after removals depends on the file system.
    fn read_on(&mut self) {
        let PendingNames { names, position } = &mut self.pending;
        if names.last_name().is_none() && position.is_some() && !self.is_kept {
            *position = Some(0);
        }
    }
}

struct RemovalPass<'a> {
    descent: TreeDescent<'a, RemovalLevel>,
    trail: RemovalTrail,
    lister: DirectoryLister,
    is_changed: bool,
}

impl RemovalPass<'_> {
    fn run(&mut self, end: Instant) -> PassResult {
        loop {
            if Instant::now() > end {
                self.trail.record_failure(c"", Errno::TIMEDOUT);
                return PassResult::Changed;
            }
            let (_, level) = self.descent.current_directory();
            if level.pending.names.last_name().is_some() {
                self.enter();
            } else if level.pending.position.is_some() {
                self.read();
            } else if let Some(emptied) = self.leave() {
                return emptied;
            }
        }
    }

    /// Enters the last pending subdirectory.
    fn enter(&mut self) {
        let (here, level) = self.descent.current_directory();
        let Some(name) = level.pending.names.last_name() else { return };
        let found = seal::open(here, name)
            .and_then(|directory| Ok((file_status(directory.as_fd())?, directory)));
        let error = match found {
            Ok((found, directory)) => {
                let path_length = self.trail.enter(name);
                self.descent.enter(
                    directory,
                    &found,
                    RemovalLevel { path_length, ..RemovalLevel::default() },
                );
                return;
            }
            // The entry is no directory any more, or is gone.
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {
                seal::unlink(here, name, AtFlags::empty()).err()
            }
            Err(error) => Some(error),
        };
        if let Some(error) = error.filter(|error| *error != Errno::NOENT) {
            self.trail.record_failure(name, error);
            level.is_kept = true;
        }
        self.lister.pop(&mut level.pending);
    }

    /// Lists the next entries of the current directory: removes all except subdirectories, and adds
    /// the names of subdirectories to the pending names.
    fn read(&mut self) {
        let (here, level) = self.descent.current_directory();
        let RemovalLevel { pending, is_kept, .. } = level;
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
                    trail.record_failure(name, error);
                    *is_kept = true;
                }
            }
            false
        });
        if let Err(error) = listed {
            self.trail.record_failure(c"", error);
            level.is_kept = true;
        }
        level.read_on();
    }

    /// Returns to the parent directory and removes the directory left, unless an entry of it was kept. At the top,
    /// returns the result of the pass.
    fn leave(&mut self) -> Option<PassResult> {
        let left = match self.descent.leave() {
            Ok(Some(left)) => left,
            Ok(None) if self.is_changed => return Some(PassResult::Changed),
            Ok(None) => return Some(PassResult::Emptied),
            Err(Errno::STALE) => return Some(PassResult::Changed),
            Err(error) => {
                self.trail.record_failure(c"", error);
                return Some(PassResult::Changed);
            }
        };
        self.trail.path.truncate(left.path_length);
        let (here, level) = self.descent.current_directory();
        let name = level.pending.names.last_name().unwrap_or_default();
        let removed = match left.is_kept {
            true => Ok(()),
            false => seal::unlink(here, name, AtFlags::REMOVEDIR),
        };
        level.is_kept |= left.is_kept;
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            // Another process created entries meanwhile: the directory stays for the next pass.
            Err(Errno::NOTEMPTY) if self.trail.first.is_none() => {
                self.is_changed = true;
                level.is_kept = true;
            }
            Err(error) => {
                self.trail.record_failure(name, error);
                level.is_kept = true;
            }
        }
        self.lister.pop(&mut level.pending);
        level.read_on();
        None
    }
}

/// The current path, and the first error.
struct RemovalTrail {
    /// Path of the current directory from the top, with `/` at the end.
    path: Vec<u8>,
    first: Option<(PathBuf, Errno)>,
}

impl RemovalTrail {
    /// Appends a name to the path, and returns the length before.
    fn enter(&mut self, name: &CStr) -> usize {
        let length = self.path.len();
        if length < MAX_PATH_BYTES {
            self.path.extend_from_slice(name.to_bytes());
            self.path.push(b'/');
        }
        length
    }

    fn record_failure(&mut self, name: &CStr, error: Errno) {
        if self.first.is_none() {
            let path = [&self.path, name.to_bytes()].concat();
            self.first = Some((PathBuf::from(OsStr::from_bytes(&path)), error));
        }
    }
}

#[cfg(test)]
mod tests;
