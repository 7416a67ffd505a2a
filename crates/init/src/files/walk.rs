//! The files of a tree, in the order of paths.

use std::fs::File;
use std::io;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, fstat, readlinkat};
use rustix::io::Errno;

use super::{MAX_DEPTH, PART, errno, for_each_name, is_gone, open_at, stat_at, to_state};
use crate::frames::MAX_PATH_BYTES;
use crate::frames::files::{
    FileAction, FileEntry, FileEntryKind, FileEntryState, FileProblem, FileScope, ScopePosition,
};

/// Walk through the files of a scope. Only the directories on the path to the current one are open,
/// and only the names in these are in memory.
pub struct FileWalk<'s> {
    scope: &'s FileScope,
    levels: Vec<WalkDirectory>,
    /// Path of the innermost open directory.
    path: Vec<u8>,
    below: Option<Vec<u8>>,
    skipped: u64,
}

struct WalkDirectory {
    dir: OwnedFd,
    names: NameList,
    /// Length of the path before the directory's name was added.
    parent_bytes: usize,
}

/// Names in one allocation, because there may be many.
struct NameList {
    /// Names, each after its length.
    bytes: Vec<u8>,
    /// Offsets of the names, in descending order of names.
    places: Vec<u32>,
}

/// File of a walk, or the problem with a path: the state of everything beneath it is unknown.
pub type WalkItem = Result<FileEntry, FileProblem>;

impl NameList {
    fn of(dir: &OwnedFd) -> io::Result<Self> {
        let (mut bytes, mut count) = (Vec::new(), 0);
        let mut too_many = false;
        for_each_name(dir, |name| match (u32::try_from(bytes.len()), u8::try_from(name.len())) {
            (Ok(_), Ok(length)) if !name.starts_with(PART) => {
                count += 1;
                bytes.push(length);
                bytes.extend_from_slice(name);
            }
            (Ok(_), Ok(_)) => {}
            _ => too_many = true,
        })?;
        if too_many {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        bytes.shrink_to_fit();
        // Allocated now, and at once: two vectors that grow side by side fragment the memory.
        let (mut places, mut begin) = (Vec::with_capacity(count), 0_u32);
        for _ in 0..count {
            places.push(begin);
            begin = begin.saturating_add(1 + u32::from(bytes[begin as usize]));
        }
        places.sort_unstable_by(|a, b| name(&bytes, *b).cmp(name(&bytes, *a)));
        // A file that is renamed meanwhile may be listed twice.
        places.dedup_by(|a, b| name(&bytes, *a) == name(&bytes, *b));
        Ok(NameList { bytes, places })
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        self.places.pop().map(|begin| name(&self.bytes, begin).to_vec())
    }
}

/// Returns the name at an offset.
fn name(bytes: &[u8], begin: u32) -> &[u8] {
    let begin = begin as usize;
    &bytes[begin + 1..][..usize::from(bytes[begin])]
}

impl<'s> FileWalk<'s> {
    /// Returns a walk that begins at the open root directory.
    pub fn new(root: OwnedFd, scope: &'s FileScope) -> io::Result<Self> {
        let names = NameList::of(&root)?;
        let levels = vec![WalkDirectory { dir: root, names, parent_bytes: 0 }];
        Ok(FileWalk { scope, levels, path: Vec::new(), below: None, skipped: 0 })
    }

    /// Returns the number of skipped files: sockets, pipes and devices, and links where the scope
    /// excludes them.
    pub fn skipped_count(&self) -> u64 {
        self.skipped
    }

    /// Returns the next file. Files that vanish meanwhile are left out.
    pub fn next_found(&mut self) -> Option<WalkItem> {
        loop {
            if let Some(name) = self.below.take()
                && let Err(error) = self.descend(&name)
                && !is_gone(&error)
            {
                return Some(self.problem(FileAction::List, &name, errno(&error)));
            }
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.take() else {
                self.path.truncate(level.parent_bytes);
                self.levels.pop();
                continue;
            };
            if let Some(found) = self.inspect_entry(&name) {
                return Some(found);
            }
        }
    }

    fn inspect_entry(&mut self, name: &[u8]) -> Option<WalkItem> {
        let path = self.path_of(name);
        let position = self.scope.position(&path);
        if position == ScopePosition::Outside {
            return None;
        }
        if path.len() >= MAX_PATH_BYTES {
            return Some(self.problem(FileAction::List, name, 0));
        }
        let state = match stat_at(self.levels.last()?.dir.as_fd(), name) {
            Ok(state) => state,
            Err(Errno::NOENT) => return None,
            Err(error) => {
                return Some(self.problem(FileAction::Read, name, error.raw_os_error()));
            }
        };
        let is_directory = state.is_some_and(|state| state.kind == FileEntryKind::Directory);
        if is_directory {
            self.below = Some(name.to_vec());
        }
        match (position, state) {
            (ScopePosition::Above, _) if is_directory => None,
            // A job has replaced an included directory, or one above it.
            (ScopePosition::Above | ScopePosition::Root, _) if !is_directory => {
                Some(self.problem(FileAction::List, name, Errno::NOTDIR.raw_os_error()))
            }
            (_, Some(state)) if self.scope.has(&path, state.kind) => {
                Some(Ok(FileEntry { path, state }))
            }
            _ => {
                self.skipped += 1;
                None
            }
        }
    }

    fn descend(&mut self, name: &[u8]) -> io::Result<()> {
        let above = self.levels.last().ok_or(io::ErrorKind::NotFound)?;
        if self.levels.len() == MAX_DEPTH {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let dir = open_at(above.dir.as_fd(), name, OFlags::DIRECTORY)?;
        let names = NameList::of(&dir)?;
        let parent_bytes = self.path.len();
        self.path = self.path_of(name);
        self.levels.push(WalkDirectory { dir, names, parent_bytes });
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

    fn problem(&self, action: FileAction, name: &[u8], errno: i32) -> WalkItem {
        Err(FileProblem { action, path: self.path_of(name), errno })
    }

    /// Opens the regular file that was found last, and returns its current state.
    pub fn open(&self, entry: &FileEntry) -> io::Result<(File, FileEntryState)> {
        let (dir, name) = self.locate(entry)?;
        let file = open_at(dir, name, OFlags::RDONLY)?;
        let state = to_state(&fstat(&file)?).filter(|state| state.kind == FileEntryKind::File);
        Ok((file.into(), state.ok_or(io::ErrorKind::InvalidInput)?))
    }

    /// Returns the target of the link that was found last.
    pub fn read_link(&self, entry: &FileEntry) -> io::Result<Vec<u8>> {
        let (dir, name) = self.locate(entry)?;
        Ok(readlinkat(dir, name, Vec::new())?.into_bytes())
    }

    fn locate<'e>(&self, entry: &'e FileEntry) -> io::Result<(BorrowedFd<'_>, &'e [u8])> {
        let level = self.levels.last().ok_or(io::ErrorKind::NotFound)?;
        let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Ok((level.dir.as_fd(), name))
    }
}
