//! Visiting everything in a directory that others may change meanwhile: of any depth and size, with few
//! descriptors. Symbolic links are not followed, and what is mounted there is left alone.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Statx, openat};
use rustix::io::Errno;

use super::beneath::open_strictly;
use super::descent::{Bounds, DIRECTORY, Descent, Lister, Pending, look};
use super::fs::{PathContext as _, PathError};

/// The first few errors, and how many there were.
#[derive(Debug, Default)]
pub struct Problems {
    /// The number of all errors.
    pub count: u64,
    /// The first of them. Paths of great length end early.
    pub first: Vec<PathError>,
}

impl Problems {
    const KEPT: usize = 8;

    fn push(&mut self, error: impl FnOnce() -> PathError) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(error());
        }
    }
}

/// Opened so, a file stays the one that it was when it was opened, and nothing happens to it.
pub const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is to be done with an entry of a directory next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    Enter,
}

/// What is done with all that is in a directory.
pub trait Visitor {
    /// Does what is to be done with a directory that is open, before what is in it.
    fn directory(&mut self, directory: &OwnedFd, found: &Statx, name: &CStr, trace: &mut Trace<'_>);

    /// Does what is to be done with what has a name in a directory, unless it is a directory: what it is
    /// may change until it is open.
    fn entry(&mut self, here: BorrowedFd<'_>, name: &CStr, trace: &mut Trace<'_>) -> Next;

    /// Does what lets a directory be opened that the kernel does not let this process open.
    fn closed(&mut self, here: BorrowedFd<'_>, name: &CStr) -> Closed;
}

/// What is to be done with a directory that could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Retry,
    /// It is nobody's of those who are to be visited.
    Leave,
    Report,
}

/// Where a walk is, and what went wrong on the way.
pub struct Trace<'a> {
    /// The name of the top, for messages.
    name: &'a Path,
    /// The directory it is in, from the top, with `/` at the end.
    path: Vec<u8>,
    problems: Problems,
}

impl Trace<'_> {
    /// Notes what could not be done with something in the directory; with the directory if the name is
    /// empty.
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

/// Visits a directory and all that is in it, and returns what went wrong with single files.
///
/// What somebody removes meanwhile is no error.
///
/// # Errors
///
/// Fails if the directory itself cannot be opened.
pub fn walk(
    directory: BorrowedFd<'_>,
    name: &Path,
    visitor: &mut dyn Visitor,
) -> Result<Problems, PathError> {
    // The one that is given may permit nothing, and its position is its owner's.
    let top = openat(directory, c".", DIRECTORY, Mode::empty()).at("open", name)?;
    let mut trace = Trace { name, path: Vec::new(), problems: Problems::default() };
    let found = look(top.as_fd()).at("look at", name)?;
    visitor.directory(&top, &found, c"", &mut trace);
    let descent = Descent::new(top.as_fd(), Level::new(0)).at("look at", name)?;
    let mut walk = Walk { descent, visitor, trace, lister: Lister::new(WAITING), restarts: 0 };
    walk.run();
    Ok(walk.trace.problems)
}

/// How often the walk starts anew because somebody moved the directory that it was in.
const MAX_RESTARTS: usize = 16;

/// How many bytes of names of a directory, and of all directories on the way, may wait to be gone into.
const WAITING: Bounds = Bounds { here: 64 << 10, all: 16 << 20 };

/// How much of a path is remembered for messages.
const MAX_PATH_BYTES: usize = 4096;

/// What is known of a directory on the way down.
struct Level {
    pending: Pending,
    /// The length of the path of the one above.
    path_length: usize,
}

impl Level {
    fn new(path_length: usize) -> Self {
        Level { pending: Pending::default(), path_length }
    }
}

struct Walk<'a, 'v> {
    descent: Descent<'a, Level>,
    visitor: &'v mut dyn Visitor,
    trace: Trace<'a>,
    lister: Lister,
    restarts: usize,
}

impl Walk<'_, '_> {
    fn run(&mut self) {
        loop {
            if self.enter_next() {
                continue;
            }
            let (here, level) = self.descent.here();
            if level.pending.position.is_some() {
                let (visitor, trace) = (&mut *self.visitor, &mut self.trace);
                let listed = self.lister.list(here, &mut level.pending, |name, kind| {
                    kind == FileType::Directory || visitor.entry(here, name, trace) == Next::Enter
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
                    self.trace.problem("find the way back from", c"", error);
                    return;
                }
                Err(_) => {
                    self.restarts += 1;
                    self.lister.restart();
                    self.trace.path.clear();
                    self.descent.restart(Level::new(0));
                }
            }
        }
    }

    /// Goes into the next directory that waits, or tells that none does.
    fn enter_next(&mut self) -> bool {
        let (here, level) = self.descent.here();
        let Some(name) = self.lister.pop(&mut level.pending) else { return false };
        let open = || open_strictly(here, name.as_c_str(), DIRECTORY, Mode::empty());
        let opened = match open() {
            Err(error @ Errno::ACCESS) => match self.visitor.closed(here, &name) {
                Closed::Retry => open(),
                Closed::Leave => return true,
                Closed::Report => Err(error),
            },
            opened => opened,
        };
        let directory = match opened {
            Ok(directory) => directory,
            // It is something else by now.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                self.visitor.entry(here, &name, &mut self.trace);
                return true;
            }
            // It is gone, or something is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => return true,
            Err(error) => {
                self.trace.problem("open", &name, error);
                return true;
            }
        };
        let found = match look(directory.as_fd()) {
            Ok(found) => found,
            Err(error) => {
                self.trace.problem("look at", &name, error);
                return true;
            }
        };
        self.visitor.directory(&directory, &found, &name, &mut self.trace);
        let path_length = self.trace.path.len();
        if path_length < MAX_PATH_BYTES {
            self.trace.path.extend_from_slice(name.as_bytes());
            self.trace.path.push(b'/');
        }
        self.descent.enter(directory, &found, Level::new(path_length));
        true
    }
}
