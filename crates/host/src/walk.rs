//! Visits an untrusted directory tree, of any depth and size, with few descriptors. Symbolic links are not followed,
//! and mount points are skipped. [`ownership`](super::ownership), [`share`](super::share) and
//! [`usage`](super::usage) use it.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use oci_hooks_files::beneath::{PATH_ONLY, open_strictly};
use oci_hooks_files::descent::{
    DIRECTORY, DirectoryLister, NameBounds, PendingNames, TreeDescent, file_status,
};
use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::{FileType, Mode, Stat, Statx, fstat, openat};
use rustix::io::Errno;

/// The number of errors of a walk, and the first few of them.
#[derive(Debug, Default)]
pub struct WalkProblems {
    pub count: u64,
    /// The first errors, at most eight. Very long paths are truncated.
    pub first: Vec<PathError>,
}

impl WalkProblems {
    const KEPT: usize = 8;

    fn push(&mut self, error: impl FnOnce() -> PathError) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(error());
        }
    }
}

/// Next action of a walk after an entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAction {
    /// Continues with the next entry.
    Nothing,
    /// Enters the entry, a subdirectory, later.
    Enter,
}

/// Callbacks of a walk.
pub trait TreeVisitor {
    /// Visits an open directory, before its content.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        found: &Statx,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    );

    /// Visits an entry of a directory, or returns [`EntryAction::Enter`] for a subdirectory. The type of the entry may
    /// change until it is opened.
    fn entry(
        &mut self,
        here: BorrowedFd<'_>,
        name: &CStr,
        trace: &mut WalkTrace<'_>,
    ) -> EntryAction;

    /// Handles a directory that this process may not open, for example by changing its owner.
    fn handle_access_denied(&mut self, here: BorrowedFd<'_>, name: &CStr) -> AccessDeniedAction;
}

/// Next action of a walk after a directory that this process may not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDeniedAction {
    /// Opens the directory again, after the visitor has changed it.
    Retry,
    /// Skips the directory without an error, for example because the walk does not change files of its owner.
    Skip,
    /// Records an error of the walk.
    Report,
}

/// The current path of a walk, and its errors.
pub struct WalkTrace<'a> {
    /// Path of the top directory, for messages.
    name: &'a Path,
    /// Path of the current directory from the top, with `/` at the end.
    path: Vec<u8>,
    problems: WalkProblems,
}

impl WalkTrace<'_> {
    /// Opens an entry of the current directory as [`open_entry`] does. Returns `None` if it is gone, or is a mount
    /// point; other errors are recorded.
    pub fn open_entry(&mut self, here: BorrowedFd<'_>, name: &CStr) -> Option<(OwnedFd, Stat)> {
        match open_entry(here, name) {
            Ok(opened) => Some(opened),
            Err(Errno::NOENT | Errno::XDEV) => None,
            Err(error) => {
                self.problem("open", name, error);
                None
            }
        }
    }

    /// Records an error of an entry of the current directory, or of the directory itself if the name is empty.
    pub fn problem(&mut self, action: &'static str, name: &CStr, error: Errno) {
        let (top, path) = (self.name, &self.path);
        self.problems.push(|| {
            let mut path = top.join(OsStr::from_bytes(path));
            if !name.is_empty() {
                path.push(OsStr::from_bytes(name.to_bytes()));
            }
            PathError::new(action, &path, error)
        });
    }
}

/// Opens an entry of a directory without side effects, and returns its status.
pub fn open_entry(here: BorrowedFd<'_>, name: &CStr) -> Result<(OwnedFd, Stat), Errno> {
    let file = open_strictly(here, name, PATH_ONLY, Mode::empty())?;
    let found = fstat(&file)?;
    Ok((file, found))
}

/// Visits a directory and its content, and returns the errors of single files.
///
/// Files that are removed meanwhile are no errors.
///
/// # Errors
///
/// Fails if the directory itself cannot be opened.
pub fn walk(
    directory: BorrowedFd<'_>,
    name: &Path,
    visitor: &mut dyn TreeVisitor,
) -> Result<WalkProblems, PathError> {
    // The given descriptor may be `O_PATH`, and its read position belongs to the caller.
    let top = openat(directory, c".", DIRECTORY, Mode::empty()).with_path("open", name)?;
    let mut trace = WalkTrace { name, path: Vec::new(), problems: WalkProblems::default() };
    let found = file_status(top.as_fd()).with_path("inspect", name)?;
    visitor.directory(&top, &found, c"", &mut trace);
    let descent = TreeDescent::new(top.as_fd(), WalkLevel::new(0)).with_path("inspect", name)?;
    let mut walk =
        TreeWalk { descent, visitor, trace, lister: DirectoryLister::new(WAITING), restarts: 0 };
    walk.run();
    Ok(walk.trace.problems)
}

/// Maximum number of restarts after the current directory was moved.
const MAX_RESTARTS: usize = 16;

/// Memory limits for the names of subdirectories that the walk has not visited yet, in bytes.
const WAITING: NameBounds = NameBounds { here: 64 << 10, all: 16 << 20 };

/// Maximum length of a path in messages.
const MAX_PATH_BYTES: usize = 4096;

/// The state of a directory on the current path.
struct WalkLevel {
    pending: PendingNames,
    /// Length of the path of the parent directory, to which the current path is truncated on
    /// leaving.
    path_length: usize,
}

impl WalkLevel {
    fn new(path_length: usize) -> Self {
        WalkLevel { pending: PendingNames::default(), path_length }
    }
}

struct TreeWalk<'a, 'v> {
    descent: TreeDescent<'a, WalkLevel>,
    visitor: &'v mut dyn TreeVisitor,
    trace: WalkTrace<'a>,
    lister: DirectoryLister,
    restarts: usize,
}

impl TreeWalk<'_, '_> {
    fn run(&mut self) {
        loop {
            if self.enter_next() {
                continue;
            }
            let (here, level) = self.descent.current_directory();
            if level.pending.position.is_some() {
                let (visitor, trace) = (&mut *self.visitor, &mut self.trace);
                let listed = self.lister.list(here, &mut level.pending, |name, kind| {
                    kind == FileType::Directory
                        || visitor.entry(here, name, trace) == EntryAction::Enter
                });
                if let Err(error) = listed {
                    self.trace.problem("list", c"", error);
                }
                continue;
            }
            match self.descent.leave() {
                Ok(Some(level)) => self.trace.path.truncate(level.path_length),
                Ok(None) => return,
                Err(error) if self.restarts == MAX_RESTARTS => {
                    self.trace.problem("return to the parent directory of", c"", error);
                    return;
                }
                Err(_) => {
                    self.restarts += 1;
                    self.lister.restart();
                    self.trace.path.clear();
                    self.descent.restart(WalkLevel::new(0));
                }
            }
        }
    }

    /// Enters the next pending subdirectory; returns false if there is none.
    fn enter_next(&mut self) -> bool {
        let (here, level) = self.descent.current_directory();
        let Some(name) = self.lister.pop(&mut level.pending) else { return false };
        let open = || open_strictly(here, name.as_c_str(), DIRECTORY, Mode::empty());
        let opened = match open() {
            Err(error @ Errno::ACCESS) => match self.visitor.handle_access_denied(here, &name) {
                AccessDeniedAction::Retry => open(),
                AccessDeniedAction::Skip => return true,
                AccessDeniedAction::Report => Err(error),
            },
            opened => opened,
        };
        let directory = match opened {
            Ok(directory) => directory,
            // The entry is no directory any more.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                self.visitor.entry(here, &name, &mut self.trace);
                return true;
            }
            // The directory is gone, or is a mount point.
            Err(Errno::NOENT | Errno::XDEV) => return true,
            Err(error) => {
                self.trace.problem("open", &name, error);
                return true;
            }
        };
        let found = match file_status(directory.as_fd()) {
            Ok(found) => found,
            Err(error) => {
                self.trace.problem("inspect", &name, error);
                return true;
            }
        };
        self.visitor.directory(&directory, &found, &name, &mut self.trace);
        let path_length = self.trace.path.len();
        if path_length < MAX_PATH_BYTES {
            self.trace.path.extend_from_slice(name.as_bytes());
            self.trace.path.push(b'/');
        }
        self.descent.enter(directory, &found, WalkLevel::new(path_length));
        true
    }
}
