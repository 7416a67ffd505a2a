//! Descending into a directory tree of any depth and ascending again, with few descriptors and without
//! recursion: an untrusted tree may be arbitrarily deep.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags, openat, seek, statx,
};
use rustix::io::Errno;

/// Flags to open a directory for listing; a symbolic link is not followed.
pub const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Maximum number of open directories besides the top one.
const MAX_OPEN: usize = 4;

/// A path of nested directories below a top directory.
///
/// Only the deepest directories are open. The others are opened again through `..`, and have to have the
/// same identity as before: another process may move directories meanwhile.
pub struct TreeDescent<'a, T> {
    top: BorrowedFd<'a>,
    levels: Vec<DescentLevel<T>>,
    /// Descriptors of the deepest directories, at most [`MAX_OPEN`].
    open: VecDeque<OwnedFd>,
}

struct DescentLevel<T> {
    id: DirectoryId,
    data: T,
}

/// Identity of a directory. If the file system records birth times, it also differs from a later directory
/// that reuses the inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DirectoryId {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
}

impl DirectoryId {
    fn new(found: &Statx) -> Self {
        let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
        DirectoryId {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born: if is_known { born } else { (0, 0) },
        }
    }
}

/// Returns the status of an open file, including its birth time.
pub fn file_status(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

impl<'a, T> TreeDescent<'a, T> {
    /// Starts in a directory that is open for reading.
    pub fn new(top: BorrowedFd<'a>, data: T) -> Result<Self, Errno> {
        let level = DescentLevel { id: DirectoryId::new(&file_status(top)?), data };
        Ok(TreeDescent { top, levels: vec![level], open: VecDeque::new() })
    }

    /// Returns the current directory and its data.
    pub fn current_directory(&mut self) -> (BorrowedFd<'_>, &mut T) {
        let level = self.levels.last_mut().expect("the top is never left");
        (self.open.back().map_or(self.top, |open| open.as_fd()), &mut level.data)
    }

    /// Enters an open directory; `found` is its status.
    pub fn enter(&mut self, directory: OwnedFd, found: &Statx, data: T) {
        if self.open.len() == MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back(directory);
        self.levels.push(DescentLevel { id: DirectoryId::new(found), data });
    }

    /// Returns to the parent directory, and returns the data of the directory left; `None` at the top.
    ///
    /// # Errors
    ///
    /// `ESTALE` if the directory has been moved: its parent cannot be found, and only
    /// [`restart`](Self::restart) is possible.
    pub fn leave(&mut self) -> Result<Option<T>, Errno> {
        if self.levels.len() == 1 {
            return Ok(None);
        }
        let left = self.levels.pop().expect("there are two at least");
        let directory = self.open.pop_back().expect("the last one is open");
        if self.open.is_empty() && self.levels.len() > 1 {
            let above = openat(&directory, c"..", DIRECTORY, Mode::empty())?;
            let level = self.levels.last().expect("there is one at least");
            if DirectoryId::new(&file_status(above.as_fd())?) != level.id {
                return Err(Errno::STALE);
            }
            self.open.push_back(above);
        }
        Ok(Some(left.data))
    }

    /// Returns the number of directories in the path, including the top one.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Returns to the top directory, and sets its data.
    pub fn restart(&mut self, data: T) {
        self.levels.truncate(1);
        self.open.clear();
        self.levels[0].data = data;
    }
}

/// Calls `each` with the entries of a directory, from a position on, until it breaks. Returns the position
/// after the entry at which it broke, or `None` at the end of the directory.
pub fn list(
    directory: BorrowedFd<'_>,
    from: u64,
    buffer: &mut DirentBuffer,
    mut each: impl FnMut(&CStr, FileType) -> ControlFlow<()>,
) -> Result<Option<u64>, Errno> {
    seek(directory, SeekFrom::Start(from))?;
    let mut entries = RawDir::new(directory, buffer.0.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // The directory has been removed.
            Err(Errno::NOENT) => return Ok(None),
            entry => entry?,
        };
        let name = entry.file_name();
        if name != c"." && name != c".." && each(name, entry.file_type()).is_break() {
            return Ok(Some(entry.next_entry_cookie()));
        }
    }
    Ok(None)
}

/// Names of a directory's subdirectories that were listed but not yet entered, and the position to
/// continue listing at.
pub struct PendingNames {
    /// Subdirectories to enter; the last one is next.
    pub names: NameStack,
    /// Position to continue at; `None` at the end of the directory.
    pub position: Option<u64>,
}

impl Default for PendingNames {
    fn default() -> Self {
        PendingNames { names: NameStack::default(), position: Some(0) }
    }
}

/// Limits of the size of [`PendingNames`], in bytes; listing a directory pauses when they are
/// reached.
pub struct NameBounds {
    pub here: usize,
    /// Limit for all directories in the path.
    pub all: usize,
}

/// Maximum number of entries that are read at a time: another process may create entries without end.
const AT_A_TIME: usize = 1 << 16;

/// Lists the directories of a descent, within limits of memory.
pub struct DirectoryLister {
    bounds: NameBounds,
    /// Size of all pending names in bytes.
    bytes: usize,
    buffer: DirentBuffer,
}

impl DirectoryLister {
    /// Returns a lister with these bounds.
    pub fn new(bounds: NameBounds) -> Self {
        DirectoryLister { bounds, bytes: 0, buffer: DirentBuffer::default() }
    }

    /// Calls `each` with the entries of a directory, from the pending position on, and adds the names for which
    /// it returns true to the pending ones. After an error, later calls return no more entries of the directory.
    pub fn list(
        &mut self,
        directory: BorrowedFd<'_>,
        pending: &mut PendingNames,
        mut each: impl FnMut(&CStr, FileType) -> bool,
    ) -> Result<(), Errno> {
        let Some(position) = pending.position.take() else { return Ok(()) };
        let before = pending.names.bytes();
        let names = &mut pending.names;
        // One name is always permitted.
        let most = if self.bytes < self.bounds.all { self.bounds.here } else { 1 };
        let mut count = 0;
        let rest = list(directory, position, &mut self.buffer, |name, kind| {
            if each(name, kind) {
                names.push(name);
            }
            count += 1;
            let goes_on = names.bytes() < most && count < AT_A_TIME;
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.bytes += names.bytes() - before;
        pending.position = rest?;
        Ok(())
    }

    /// Removes the last pending name and returns it.
    pub fn pop(&mut self, pending: &mut PendingNames) -> Option<CString> {
        let name = pending.names.pop()?;
        self.bytes = self.bytes.saturating_sub(name.as_bytes_with_nul().len());
        Some(name)
    }

    /// Resets the size of pending names, for a descent that starts again.
    pub fn restart(&mut self) {
        self.bytes = 0;
    }
}

/// Buffer for getdents64(2).
pub struct DirentBuffer(Vec<u8>);

impl Default for DirentBuffer {
    fn default() -> Self {
        DirentBuffer(Vec::with_capacity(64 << 10))
    }
}

/// A stack of file names in one buffer.
#[derive(Default)]
pub struct NameStack(Vec<u8>);

impl NameStack {
    /// Pushes a name.
    pub fn push(&mut self, name: &CStr) {
        self.0.extend_from_slice(name.to_bytes_with_nul());
    }

    /// Returns the name that was pushed last; `None` if the stack is empty.
    pub fn last_name(&self) -> Option<&CStr> {
        let end = self.0.len().checked_sub(1)?;
        let start = self.0[..end].iter().rposition(|&byte| byte == 0).map_or(0, |nul| nul + 1);
        CStr::from_bytes_with_nul(&self.0[start..]).ok()
    }

    /// Removes the last name and returns it.
    pub fn pop(&mut self) -> Option<CString> {
        let name = self.last_name()?.to_owned();
        self.0.truncate(self.0.len() - name.as_bytes_with_nul().len());
        if self.0.is_empty() {
            // Free the memory: many levels have no names left.
            self.0 = Vec::new();
        }
        Some(name)
    }

    /// Returns the length of all names in bytes.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// Creates nested directories and descends into them.
    fn descend_levels(top: &File, levels: usize) -> TreeDescent<'_, usize> {
        let mut descent = TreeDescent::new(top.as_fd(), 0).unwrap();
        for level in 1..=levels {
            let (here, _) = descent.current_directory();
            rustix::fs::mkdirat(here, c"d", Mode::RWXU).unwrap();
            let directory = openat(here, c"d", DIRECTORY, Mode::empty()).unwrap();
            let found = file_status(directory.as_fd()).unwrap();
            descent.enter(directory, &found, level);
            assert!(descent.open.len() <= MAX_OPEN);
        }
        descent
    }

    #[test]
    fn descent_returns_the_way_it_came() {
        let dir = tempfile::tempdir().unwrap();
        let top = File::open(dir.path()).unwrap();
        let mut descent = descend_levels(&top, 3 * MAX_OPEN);
        let left: Vec<usize> = std::iter::from_fn(|| descent.leave().unwrap()).collect();
        assert_eq!(left, (1..=3 * MAX_OPEN).rev().collect::<Vec<_>>());
        assert!(
            file_status(descent.current_directory().0).unwrap().stx_ino
                == file_status(top.as_fd()).unwrap().stx_ino
        );
    }

    #[test]
    fn moved_directory_is_not_left_for_another_parent() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = File::open(dir.path()).unwrap();
        let mut descent = descend_levels(&top, 2 * MAX_OPEN);
        fs::rename(dir.path().join("d/d/d"), other.path().join("d")).unwrap();
        let left = std::iter::from_fn(|| match descent.leave() {
            Ok(left) => left.map(Ok),
            Err(error) => Some(Err(error)),
        });
        let left: Vec<_> = left.take_while(Result::is_ok).collect();
        // Levels that were still open are left without a check.
        assert_eq!(left.len(), 2 * MAX_OPEN - 3);
        descent.restart(7);
        let (here, data) = descent.current_directory();
        assert_eq!(
            (file_status(here).unwrap().stx_ino, *data),
            (file_status(top.as_fd()).unwrap().stx_ino, 7)
        );
    }

    #[test]
    fn reading_a_directory_resumes_after_a_descent() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..100 {
            fs::write(dir.path().join(name.to_string()), "").unwrap();
        }
        let top = File::open(dir.path()).unwrap();
        let (mut position, mut seen) = (Some(0), std::collections::BTreeSet::new());
        let mut buffer = DirentBuffer::default();
        while let Some(from) = position {
            let mut count = 0;
            position = list(top.as_fd(), from, &mut buffer, |name, _| {
                assert!(seen.insert(name.to_owned()), "{name:?} was seen twice");
                count += 1;
                if count < 7 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        }
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn names_are_returned_last_to_first() {
        let mut names = NameStack::default();
        assert_eq!(names.last_name(), None);
        for name in [c"a", c"bcd", c"e"] {
            names.push(name);
        }
        assert_eq!(names.bytes(), 8);
        assert_eq!(names.last_name(), Some(c"e"));
        let all: Vec<CString> = std::iter::from_fn(|| names.pop()).collect();
        assert_eq!(all, [c"e", c"bcd", c"a"].map(CStr::to_owned));
        assert_eq!(names.bytes(), 0);
    }
}
