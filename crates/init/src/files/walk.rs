//! The files of a tree, in the order of paths.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use super::{FileStat, MAX_DEPTH, PART, errno, is_missing, to_c_string};
use crate::at;
use crate::frames::files::{
    FileAction, FileEntry, FileEntryKind, FileProblem, FileScope, ScopePosition,
};

const ENOTDIR: i32 = 20;
/// Longest path that can be sent.
const MAX_PATH_BYTES: usize = 4095;

/// Walk through the files of a scope. Only the directories on the path to the current one are open,
/// and only the names in these are in memory.
pub struct FileWalk<'s> {
    scope: &'s FileScope,
    levels: Vec<WalkDirectory>,
    /// Path of the innermost open directory.
    path: Vec<u8>,
    below: Option<CString>,
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

/// Item that a walk returns.
pub enum WalkItem {
    Entry(FileEntry),
    /// The path could not be read; the state of everything beneath it is unknown.
    Problem(FileProblem),
}

impl WalkItem {
    pub(crate) fn path(&self) -> &[u8] {
        match self {
            WalkItem::Entry(entry) => &entry.path,
            WalkItem::Problem(problem) => &problem.path,
        }
    }
}

impl NameList {
    fn of(dir: &OwnedFd) -> io::Result<Self> {
        let (mut bytes, mut count) = (Vec::new(), 0);
        let mut too_many = false;
        at::for_each_name(dir.as_fd(), |name| {
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

    fn take(&mut self) -> Option<&[u8]> {
        let begin = self.places.pop()?;
        Some(name(&self.bytes, begin))
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
                && !is_missing(&error)
                && error.raw_os_error() != Some(ENOTDIR)
            {
                return Some(self.problem(FileAction::List, name.as_bytes(), errno(&error)));
            }
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.take() else {
                self.path.truncate(level.parent_bytes);
                self.levels.pop();
                continue;
            };
            let name = CString::new(name).expect("the kernel's names have no NUL");
            if let Some(found) = self.inspect_entry(&name) {
                return Some(found);
            }
        }
    }

    fn inspect_entry(&mut self, name: &CString) -> Option<WalkItem> {
        let path = self.path_of(name.as_bytes());
        let position = self.scope.position(&path);
        if position == ScopePosition::Outside {
            return None;
        }
        if path.len() > MAX_PATH_BYTES {
            return Some(self.problem(FileAction::List, name.as_bytes(), 0));
        }
        let dir = self.levels.last()?.dir.as_fd();
        let stat = match at::stat(dir, name) {
            Ok(stat) => stat,
            Err(error) if is_missing(&error) => return None,
            Err(error) => {
                return Some(self.problem(FileAction::Read, name.as_bytes(), errno(&error)));
            }
        };
        let is_directory = stat.kind == Some(FileEntryKind::Directory);
        if is_directory {
            self.below = Some(name.clone());
        }
        match (position, stat.state()) {
            (ScopePosition::Above, _) if is_directory => None,
            // A job has replaced an included directory, or one above it.
            (ScopePosition::Above | ScopePosition::Root, _) if !is_directory => {
                Some(self.problem(FileAction::List, name.as_bytes(), ENOTDIR))
            }
            (_, Some(state)) if self.scope.has(&path, state.kind) => {
                Some(WalkItem::Entry(FileEntry { path, state }))
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
        let names = NameList::of(&dir)?;
        let parent_bytes = self.path.len();
        self.path = self.path_of(name.as_bytes());
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
        WalkItem::Problem(FileProblem { action, path: self.path_of(name), errno })
    }

    /// Opens the file that was found last, and returns its current metadata.
    pub fn open(&self, entry: &FileEntry) -> io::Result<(File, FileStat)> {
        let (dir, name) = self.locate(entry)?;
        let file = at::open_file(dir.dir.as_fd(), &name)?;
        let stat = at::stat_open(&file)?;
        Ok((file, stat))
    }

    /// Returns the target of the link that was found last.
    pub fn read_link(&self, entry: &FileEntry) -> io::Result<Vec<u8>> {
        let (dir, name) = self.locate(entry)?;
        at::read_link(dir.dir.as_fd(), &name)
    }

    fn locate(&self, entry: &FileEntry) -> io::Result<(&WalkDirectory, CString)> {
        let level = self.levels.last().ok_or(io::ErrorKind::NotFound)?;
        let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Ok((level, to_c_string(name)?))
    }
}
