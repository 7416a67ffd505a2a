//! What is in a tree, in the order of paths.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use super::super::at;
use super::super::frames::files::{Action, Entry, Kind, Place, Problem, Scope};
use super::{MAX_DEPTH, PART, Stat, errno, is_missing, terminated};

const ENOTDIR: i32 = 20;
/// The longest path that can be sent.
const MAX_PATH_BYTES: usize = 4095;

/// A walk through the files of a scope. Only directories on the way to the current one are open, and of
/// files it keeps the names of those in these directories.
pub struct Walk<'s> {
    scope: &'s Scope,
    levels: Vec<Level>,
    /// Of the directory of the last level.
    path: Vec<u8>,
    /// A directory that was found, to be listed next.
    below: Option<CString>,
    skipped: u64,
}

struct Level {
    dir: OwnedFd,
    names: Names,
    /// How long the path was before its name was added.
    parent_bytes: usize,
}

/// Names in one piece of memory: there may be many.
struct Names {
    /// Each after its length.
    bytes: Vec<u8>,
    /// Where each begins, last one first.
    places: Vec<u32>,
}

/// What a walk finds.
pub enum Found {
    Entry(Entry),
    /// What is at the path, and beneath it, is not known.
    Problem(Problem),
}

impl Found {
    pub(crate) fn path(&self) -> &[u8] {
        match self {
            Found::Entry(entry) => &entry.path,
            Found::Problem(problem) => &problem.path,
        }
    }
}

impl Names {
    fn of(dir: &OwnedFd) -> io::Result<Self> {
        let (mut bytes, mut count) = (Vec::new(), 0);
        let mut too_many = false;
        at::each_name(dir.as_fd(), |name| {
            match (u32::try_from(bytes.len()), u8::try_from(name.len())) {
                (Ok(_), Ok(length)) if !name.starts_with(PART) => {
                    count += 1;
                    bytes.push(length);
                    bytes.extend_from_slice(name);
                }
                (Ok(_), Ok(_)) => {}
                _ => too_many = true,
            }
        })?;
        if too_many {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        bytes.shrink_to_fit();
        // Only now, and in one piece: what grows beside something that grows leaves holes.
        let (mut places, mut begin) = (Vec::with_capacity(count), 0_u32);
        for _ in 0..count {
            places.push(begin);
            begin = begin.saturating_add(1 + u32::from(bytes[begin as usize]));
        }
        places.sort_unstable_by(|a, b| name(&bytes, *b).cmp(name(&bytes, *a)));
        // A file that is renamed meanwhile may be listed twice.
        places.dedup_by(|a, b| name(&bytes, *a) == name(&bytes, *b));
        Ok(Names { bytes, places })
    }

    fn take(&mut self) -> Option<&[u8]> {
        let begin = self.places.pop()?;
        Some(name(&self.bytes, begin))
    }
}

/// Returns the name that begins at a place.
fn name(bytes: &[u8], begin: u32) -> &[u8] {
    let begin = begin as usize;
    &bytes[begin + 1..][..usize::from(bytes[begin])]
}

impl<'s> Walk<'s> {
    /// Begins at a root.
    pub fn new(root: OwnedFd, scope: &'s Scope) -> io::Result<Self> {
        let names = Names::of(&root)?;
        let levels = vec![Level { dir: root, names, parent_bytes: 0 }];
        Ok(Walk { scope, levels, path: Vec::new(), below: None, skipped: 0 })
    }

    /// Returns how many files of kinds that are not exchanged, or not there, were met.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the next file. What vanishes meanwhile was not there.
    pub fn next(&mut self) -> Option<Found> {
        loop {
            if let Some(name) = self.below.take()
                && let Err(error) = self.descend(&name)
                && !is_missing(&error)
                && error.raw_os_error() != Some(ENOTDIR)
            {
                return Some(self.problem(Action::List, name.as_bytes(), errno(&error)));
            }
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.take() else {
                self.path.truncate(level.parent_bytes);
                self.levels.pop();
                continue;
            };
            let name = CString::new(name).expect("the kernel's names have no NUL");
            if let Some(found) = self.look_at(&name) {
                return Some(found);
            }
        }
    }

    fn look_at(&mut self, name: &CString) -> Option<Found> {
        let path = self.path_of(name.as_bytes());
        let place = self.scope.place(&path);
        if place == Place::Outside {
            return None;
        }
        if path.len() > MAX_PATH_BYTES {
            return Some(self.problem(Action::List, name.as_bytes(), 0));
        }
        let dir = self.levels.last()?.dir.as_fd();
        let stat = match at::stat(dir, name) {
            Ok(stat) => stat,
            Err(error) if is_missing(&error) => return None,
            Err(error) => {
                return Some(self.problem(Action::Read, name.as_bytes(), errno(&error)));
            }
        };
        let is_directory = stat.kind == Some(Kind::Directory);
        if is_directory {
            self.below = Some(name.clone());
        }
        match (place, stat.state()) {
            (Place::Above, _) if is_directory => None,
            // What a job put in the place of a directory of ours.
            (Place::Above | Place::Root, _) if !is_directory => {
                Some(self.problem(Action::List, name.as_bytes(), ENOTDIR))
            }
            (_, Some(state)) if self.scope.has(&path, state.kind) => {
                Some(Found::Entry(Entry { path, state }))
            }
            _ => {
                self.skipped += 1;
                None
            }
        }
    }

    fn descend(&mut self, name: &CString) -> io::Result<()> {
        let above = self.levels.last().ok_or(io::ErrorKind::NotFound)?;
        if self.levels.len() == MAX_DEPTH {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let dir = at::open_directory(above.dir.as_fd(), name)?;
        let names = Names::of(&dir)?;
        let parent_bytes = self.path.len();
        self.path = self.path_of(name.as_bytes());
        self.levels.push(Level { dir, names, parent_bytes });
        Ok(())
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    fn problem(&self, action: Action, name: &[u8], errno: i32) -> Found {
        Found::Problem(Problem { action, path: self.path_of(name), errno })
    }

    /// Opens a file that was found last, and returns what it is by now.
    pub fn open(&self, entry: &Entry) -> io::Result<(File, Stat)> {
        let (dir, name) = self.place_of(entry)?;
        let file = at::open_file(dir.dir.as_fd(), &name)?;
        let stat = at::stat_open(&file)?;
        Ok((file, stat))
    }

    /// Returns what a link leads to that was found last.
    pub fn read_link(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        let (dir, name) = self.place_of(entry)?;
        at::read_link(dir.dir.as_fd(), &name)
    }

    fn place_of(&self, entry: &Entry) -> io::Result<(&Level, CString)> {
        let level = self.levels.last().ok_or(io::ErrorKind::NotFound)?;
        let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Ok((level, terminated(name)?))
    }
}
