//! Entries of files: compared properties, order and scope.

use std::cmp::Ordering;

use super::super::values::{PayloadReader, PayloadWriter};
use super::super::{FrameError, MAX_PATH_BYTES};

/// Limit of names in the kernel.
const MAX_NAME_BYTES: usize = 255;
const NANOSECONDS: u32 = 1_000_000_000;

/// The kinds of files that are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEntryKind {
    File,
    Directory,
    Link,
}

/// The kinds in the order of their numbers.
const KINDS: [FileEntryKind; 3] =
    [FileEntryKind::File, FileEntryKind::Directory, FileEntryKind::Link];

/// Modification time, by the clock of the system that changed the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTime {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// Compared properties of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntryState {
    pub kind: FileEntryKind,
    /// Permission bits, within `0o7777`.
    pub mode: u32,
    pub size_bytes: u64,
    pub time: FileTime,
}

/// A file beneath a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub path: Vec<u8>,
    pub state: FileEntryState,
}

/// Selection of files beneath a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileScope {
    /// Directories with everything beneath them; an empty path is the root.
    pub include: Vec<Vec<u8>>,
    /// Paths that are excluded, with everything beneath them.
    pub exclude: Vec<Vec<u8>>,
    /// Directories beneath which symbolic links are excluded, because they would be followed.
    pub without_links: Vec<Vec<u8>>,
}

/// Position of a path in a [`FileScope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopePosition {
    /// Directory in [`FileScope::include`]. An exchange changes its content, but never removes or
    /// replaces the directory.
    Root,
    Within,
    /// Directory above an included one.
    Above,
    Outside,
}

impl FileTime {
    pub(super) fn write(&self, out: &mut PayloadWriter) {
        out.0.extend(self.seconds.to_le_bytes());
        out.u32(self.nanoseconds);
    }

    pub(super) fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        let time = FileTime { seconds: from.u64()?.cast_signed(), nanoseconds: from.u32()? };
        (time.nanoseconds < NANOSECONDS).then_some(time).ok_or(FrameError::Invalid("time"))
    }
}

impl FileEntryState {
    /// Returns whether two files count as the same. Of directories only the permissions of group
    /// and others count, because owners always have all; times of directories and modes of links do
    /// not count.
    #[must_use]
    pub fn is_same(&self, other: &FileEntryState) -> bool {
        let modes = |mask: u32| self.mode & mask == other.mode & mask;
        let content = self.size_bytes == other.size_bytes && self.time == other.time;
        self.kind == other.kind
            && match self.kind {
                FileEntryKind::File => modes(0o777) && content,
                FileEntryKind::Directory => modes(0o077),
                FileEntryKind::Link => content,
            }
    }

    pub(super) fn write(&self, out: &mut PayloadWriter) {
        out.0.push(self.kind as u8);
        out.u32(self.mode);
        out.0.extend(self.size_bytes.to_le_bytes());
        self.time.write(out);
    }

    pub(super) fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        let kind = KINDS.get(usize::from(from.u8()?)).copied();
        Ok(FileEntryState {
            kind: kind.ok_or(FrameError::Invalid("kind of file"))?,
            mode: from.u32()? & 0o7777,
            size_bytes: from.u64()?,
            time: FileTime::read(from)?,
        })
    }
}

impl FileEntry {
    pub(super) fn write(&self, out: &mut PayloadWriter) {
        out.bytes(&self.path);
        self.state.write(out);
    }

    pub(super) fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        Ok(FileEntry { path: checked_path(from.bytes()?)?, state: FileEntryState::read(from)? })
    }
}

impl FileScope {
    /// Returns the scope of everything beneath the root.
    #[must_use]
    pub fn all() -> Self {
        FileScope { include: vec![Vec::new()], ..FileScope::default() }
    }

    /// Returns the position of a path in this scope.
    #[must_use]
    pub fn position(&self, path: &[u8]) -> ScopePosition {
        let covers = |dir: &Vec<u8>| path == dir || is_beneath(path, dir);
        if self.exclude.iter().any(covers) {
            ScopePosition::Outside
        } else if self.include.iter().any(|dir| is_beneath(path, dir)) {
            ScopePosition::Within
        } else if self.include.iter().any(|dir| path == dir) {
            ScopePosition::Root
        } else if self.include.iter().any(|dir| is_beneath(dir, path)) {
            ScopePosition::Above
        } else {
            ScopePosition::Outside
        }
    }

    /// Returns whether the scope includes a file of this kind at a path.
    #[must_use]
    pub fn has(&self, path: &[u8], kind: FileEntryKind) -> bool {
        match self.position(path) {
            ScopePosition::Root => kind == FileEntryKind::Directory,
            ScopePosition::Within => {
                let is_plain = self.without_links.iter().any(|dir| is_beneath(path, dir));
                !is_plain || kind != FileEntryKind::Link
            }
            ScopePosition::Above | ScopePosition::Outside => false,
        }
    }

    pub(super) fn write(&self, out: &mut PayloadWriter) {
        for list in [&self.include, &self.exclude, &self.without_links] {
            out.list(list, |out, path| out.bytes(path));
        }
    }

    pub(super) fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        let paths = |from: &mut PayloadReader<'_>| {
            from.list(|from| {
                let path = from.bytes()?;
                if path.is_empty() { Ok(path) } else { checked_path(path) }
            })
        };
        Ok(FileScope { include: paths(from)?, exclude: paths(from)?, without_links: paths(from)? })
    }
}

/// Compares paths in the order of a walk: a directory, its content, and then its next sibling;
/// names byte by byte.
#[must_use]
pub fn order(a: &[u8], b: &[u8]) -> Ordering {
    let different = a.iter().zip(b).position(|(a, b)| a != b);
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    match different {
        Some(at) => rank(a[at]).cmp(&rank(b[at])),
        None => a.len().cmp(&b.len()),
    }
}

/// Returns whether a path is beneath a directory. An empty directory is the root.
#[must_use]
pub fn is_beneath(path: &[u8], dir: &[u8]) -> bool {
    if dir.is_empty() {
        return !path.is_empty();
    }
    path.strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Checks an untrusted path: names that lead downwards, within the kernel's limits.
pub fn checked_path(path: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let is_name = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..") && name.len() <= MAX_NAME_BYTES && !name.contains(&0)
    };
    let is_path = path.len() < MAX_PATH_BYTES && path.split(|byte| *byte == b'/').all(is_name);
    is_path.then_some(path).ok_or(FrameError::Invalid("path"))
}
