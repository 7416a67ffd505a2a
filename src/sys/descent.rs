//! Going down into a tree of any depth and up again, with few descriptors and a stack that does not
//! grow: whoever made the tree may have made it deep.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags, openat, seek, statx,
};
use rustix::io::Errno;

/// How a directory is opened that is gone into.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// How many directories are open at most, besides the top one.
const MAX_OPEN: usize = 4;

/// A way from a directory down into others, one in another.
///
/// Only the last ones are open. The others are opened again from below, and have to be what they were:
/// somebody may move directories meanwhile.
pub struct Descent<'a, T> {
    top: BorrowedFd<'a>,
    levels: Vec<Level<T>>,
    /// Those of the last levels.
    open: VecDeque<OwnedFd>,
}

struct Level<T> {
    id: Id,
    data: T,
}

/// What tells a directory from all others, also from those that got its inode after it was removed, if
/// the file system knows when they were made.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Id {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
}

impl Id {
    fn new(found: &Statx) -> Self {
        let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
        Id {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born: if is_known { born } else { (0, 0) },
        }
    }
}

/// Looks at what is open.
pub fn look(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

impl<'a, T> Descent<'a, T> {
    /// Starts in a directory that is open for reading.
    pub fn new(top: BorrowedFd<'a>, data: T) -> Result<Self, Errno> {
        let level = Level { id: Id::new(&look(top)?), data };
        Ok(Descent { top, levels: vec![level], open: VecDeque::new() })
    }

    /// Returns the directory it is in, and what is kept for it.
    pub fn here(&mut self) -> (BorrowedFd<'_>, &mut T) {
        let level = self.levels.last_mut().expect("the top is never left");
        (self.open.back().map_or(self.top, |open| open.as_fd()), &mut level.data)
    }

    /// Goes into a directory, as it was found when it was looked at.
    pub fn enter(&mut self, directory: OwnedFd, found: &Statx, data: T) {
        if self.open.len() == MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back(directory);
        self.levels.push(Level { id: Id::new(found), data });
    }

    /// Goes back to the one above, and returns what was kept for the one that is left: nothing at the
    /// top.
    ///
    /// # Errors
    ///
    /// `ESTALE` if the directory has been moved since: the way back is lost, and only
    /// [`restart`](Self::restart) leads anywhere.
    pub fn leave(&mut self) -> Result<Option<T>, Errno> {
        if self.levels.len() == 1 {
            return Ok(None);
        }
        let left = self.levels.pop().expect("there are two at least");
        let directory = self.open.pop_back().expect("the last one is open");
        if self.open.is_empty() && self.levels.len() > 1 {
            let above = openat(&directory, c"..", DIRECTORY, Mode::empty())?;
            let level = self.levels.last().expect("there is one at least");
            if Id::new(&look(above.as_fd())?) != level.id {
                return Err(Errno::STALE);
            }
            self.open.push_back(above);
        }
        Ok(Some(left.data))
    }

    /// Returns how many directories the way has, the top one included.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Goes back to the top.
    pub fn restart(&mut self, data: T) {
        self.levels.truncate(1);
        self.open.clear();
        self.levels[0].data = data;
    }
}

/// Calls `each` with what is in a directory, from a position on, until it breaks. Returns the position
/// after that, or nothing at the end.
pub(crate) fn list(
    directory: BorrowedFd<'_>,
    from: u64,
    buffer: &mut Buffer,
    mut each: impl FnMut(&CStr, FileType) -> ControlFlow<()>,
) -> Result<Option<u64>, Errno> {
    seek(directory, SeekFrom::Start(from))?;
    let mut entries = RawDir::new(directory, buffer.0.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // It has been removed.
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

/// What is still to be gone into and to be read of a directory.
pub(crate) struct Pending {
    /// Directories in it that wait; the last one is next.
    pub names: Names,
    /// Where to read on, if there is more.
    pub position: Option<u64>,
}

impl Default for Pending {
    fn default() -> Self {
        Pending { names: Names::default(), position: Some(0) }
    }
}

/// How many bytes of names of directories may wait to be gone into; then a directory is read on later.
pub(crate) struct Bounds {
    pub here: usize,
    /// Of all directories on the way.
    pub all: usize,
}

/// How many entries are read at a time: somebody may make more all the while.
const AT_A_TIME: usize = 1 << 16;

/// Lists directories on the way down, within bounds.
pub(crate) struct Lister {
    bounds: Bounds,
    /// How many bytes of names wait.
    bytes: usize,
    buffer: Buffer,
}

impl Lister {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Lister { bounds, bytes: 0, buffer: Buffer::new() }
    }

    /// Calls `each` with what is in a directory, from where it was left, and has those wait that it says
    /// so of. On an error nothing more of it is read.
    pub fn list(
        &mut self,
        directory: BorrowedFd<'_>,
        pending: &mut Pending,
        mut each: impl FnMut(&CStr, FileType) -> bool,
    ) -> Result<(), Errno> {
        let Some(position) = pending.position.take() else { return Ok(()) };
        let before = pending.names.bytes();
        let names = &mut pending.names;
        // One at a time always.
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

    /// Takes away the name that waits last.
    pub fn pop(&mut self, pending: &mut Pending) -> Option<CString> {
        let name = pending.names.pop()?;
        self.bytes = self.bytes.saturating_sub(name.as_bytes_with_nul().len());
        Some(name)
    }

    /// Forgets what waits: the way starts anew.
    pub fn restart(&mut self) {
        self.bytes = 0;
    }
}

/// Room for what the kernel says is in a directory.
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub(crate) fn new() -> Self {
        Buffer(Vec::with_capacity(64 << 10))
    }
}

/// Names one after the other, the last of which is taken first.
#[derive(Default)]
pub(crate) struct Names(Vec<u8>);

impl Names {
    pub(crate) fn push(&mut self, name: &CStr) {
        self.0.extend_from_slice(name.to_bytes_with_nul());
    }

    pub(crate) fn last(&self) -> Option<&CStr> {
        let end = self.0.len().checked_sub(1)?;
        let start = self.0[..end].iter().rposition(|&byte| byte == 0).map_or(0, |nul| nul + 1);
        CStr::from_bytes_with_nul(&self.0[start..]).ok()
    }

    pub(crate) fn pop(&mut self) -> Option<CString> {
        let name = self.last()?.to_owned();
        self.0.truncate(self.0.len() - name.as_bytes_with_nul().len());
        if self.0.is_empty() {
            // Many levels have none left.
            self.0 = Vec::new();
        }
        Some(name)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// Makes directories in each other and goes down into them.
    fn down(top: &File, levels: usize) -> Descent<'_, usize> {
        let mut descent = Descent::new(top.as_fd(), 0).unwrap();
        for level in 1..=levels {
            let (here, _) = descent.here();
            rustix::fs::mkdirat(here, c"d", Mode::RWXU).unwrap();
            let directory = openat(here, c"d", DIRECTORY, Mode::empty()).unwrap();
            let found = look(directory.as_fd()).unwrap();
            descent.enter(directory, &found, level);
            assert!(descent.open.len() <= MAX_OPEN);
        }
        descent
    }

    #[test]
    fn the_way_back_is_that_down() {
        let dir = tempfile::tempdir().unwrap();
        let top = File::open(dir.path()).unwrap();
        let mut descent = down(&top, 3 * MAX_OPEN);
        let left: Vec<usize> = std::iter::from_fn(|| descent.leave().unwrap()).collect();
        assert_eq!(left, (1..=3 * MAX_OPEN).rev().collect::<Vec<_>>());
        assert!(look(descent.here().0).unwrap().stx_ino == look(top.as_fd()).unwrap().stx_ino);
    }

    #[test]
    fn a_directory_that_was_moved_is_not_left_for_another() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = File::open(dir.path()).unwrap();
        let mut descent = down(&top, 2 * MAX_OPEN);
        fs::rename(dir.path().join("d/d/d"), other.path().join("d")).unwrap();
        let left = std::iter::from_fn(|| match descent.leave() {
            Ok(left) => left.map(Ok),
            Err(error) => Some(Err(error)),
        });
        let left: Vec<_> = left.take_while(Result::is_ok).collect();
        // What was open from before is the same still.
        assert_eq!(left.len(), 2 * MAX_OPEN - 3);
        descent.restart(7);
        let (here, data) = descent.here();
        assert_eq!((look(here).unwrap().stx_ino, *data), (look(top.as_fd()).unwrap().stx_ino, 7));
    }

    #[test]
    fn a_directory_is_read_on_from_where_it_was_left() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..100 {
            fs::write(dir.path().join(name.to_string()), "").unwrap();
        }
        let top = File::open(dir.path()).unwrap();
        let (mut position, mut seen) = (Some(0), std::collections::BTreeSet::new());
        let mut buffer = Buffer::new();
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
    fn names_come_back_from_the_last_to_the_first() {
        let mut names = Names::default();
        assert_eq!(names.last(), None);
        for name in [c"a", c"bcd", c"e"] {
            names.push(name);
        }
        assert_eq!(names.bytes(), 8);
        assert_eq!(names.last(), Some(c"e"));
        let all: Vec<CString> = std::iter::from_fn(|| names.pop()).collect();
        assert_eq!(all, [c"e", c"bcd", c"a"].map(CStr::to_owned));
        assert_eq!(names.bytes(), 0);
    }
}
