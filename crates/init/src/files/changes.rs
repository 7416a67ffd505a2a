//! Differences of a tree from its last exchange, as frames.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, Read as _};

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::walk::{FileWalk, WalkItem};
use super::write::AppliedChange;
use super::{errno, is_gone};
use crate::frames::files::{
    DATA_BYTES, FileAction, FileEntry, FileEntryKind, FileProblem, FileScope, ScopePosition,
    TreeChange, is_beneath, order,
};

/// Number of files to compare before returning to the caller.
const FILES_AT_ONCE: usize = 256;

/// Change that was sent completely, or the problem with its file.
pub type SentChange = Result<AppliedChange, FileProblem>;

/// Differences of a tree from its earlier state.
pub struct ChangeFinder<'s> {
    walk: FileWalk<'s>,
    scope: &'s FileScope,
    found: Option<WalkItem>,
    before: Option<FileEntry>,
    before_ended: bool,
    /// Path whose earlier entry needs no comparison any more, nor do those beneath it: their
    /// removal was sent, or the path cannot be read.
    settled: Option<Vec<u8>>,
    sending: Option<FileTransfer>,
}

/// File that is sent in several frames.
struct FileTransfer {
    file: File,
    entry: FileEntry,
    sent_bytes: u64,
}

impl<'s> ChangeFinder<'s> {
    /// Returns a finder that begins at the open root directory.
    pub fn new(root: OwnedFd, scope: &'s FileScope) -> io::Result<Self> {
        Ok(ChangeFinder {
            walk: FileWalk::new(root, scope)?,
            scope,
            found: None,
            before: None,
            before_ended: false,
            settled: None,
            sending: None,
        })
    }

    /// Returns the number of files that were skipped so far.
    pub fn skipped_count(&self) -> u64 {
        self.walk.skipped_count()
    }

    /// Appends some frames; returns whether there may be more. `before` returns the earlier
    /// entries, in the order of paths; its errors are returned.
    /// `tell` is called for each change that is complete, and for each problem.
    pub fn fill<E>(
        &mut self,
        out: &mut Vec<u8>,
        before: &mut dyn FnMut() -> Result<Option<FileEntry>, E>,
        tell: &mut dyn FnMut(SentChange),
    ) -> Result<bool, E> {
        for _ in 0..FILES_AT_ONCE {
            if out.len() >= DATA_BYTES {
                return Ok(true);
            }
            if self.sending.is_some() {
                self.send_more(out, tell);
                continue;
            }
            if self.found.is_none() {
                self.found = self.walk.next_found();
            }
            self.advance_before(before)?;
            let order = match (&self.found, &self.before) {
                (None, None) => return Ok(false),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (
                    Some(Ok(FileEntry { path, .. }) | Err(FileProblem { path, .. })),
                    Some(before),
                ) => order(path, &before.path),
            };
            let old = if order.is_ge() { self.before.take() } else { None };
            let new = if order.is_le() { self.found.take() } else { None };
            match (new, old) {
                (Some(Err(problem)), _) => {
                    self.settled = Some(problem.path.clone());
                    tell(Err(problem));
                }
                (Some(Ok(entry)), old) => self.compare(entry, old, out, tell),
                (None, Some(old)) => {
                    self.settled = Some(old.path.clone());
                    TreeChange::Remove(old.path.clone()).encode(out);
                    tell(Ok(AppliedChange::Removed(old.path)));
                }
                (None, None) => {}
            }
        }
        Ok(true)
    }

    /// Advances to the next earlier entry that is in the scope and has to be compared.
    fn advance_before<E>(
        &mut self,
        before: &mut dyn FnMut() -> Result<Option<FileEntry>, E>,
    ) -> Result<(), E> {
        while !self.before_ended {
            if let Some(old) = &self.before {
                let settled = self.settled.as_deref();
                let is_settled =
                    settled.is_some_and(|path| old.path == path || is_beneath(&old.path, path));
                let is_meant = matches!(
                    self.scope.position(&old.path),
                    ScopePosition::Root | ScopePosition::Within
                );
                if is_meant && !is_settled {
                    break;
                }
            }
            self.before = before()?;
            self.before_ended = self.before.is_none();
        }
        Ok(())
    }

    fn compare(
        &mut self,
        entry: FileEntry,
        old: Option<FileEntry>,
        out: &mut Vec<u8>,
        tell: &mut dyn FnMut(SentChange),
    ) {
        if old.as_ref().is_some_and(|old| old.state.is_same(&entry.state)) {
            return;
        }
        if old.is_some_and(|old| old.state.kind == FileEntryKind::Directory)
            && entry.state.kind != FileEntryKind::Directory
        {
            self.settled = Some(entry.path.clone());
        }
        let path = entry.path.clone();
        if let Err(error) = self.begin(entry, out, tell) {
            // Removed or replaced meanwhile: the next exchange detects that.
            let is_changing = is_gone(&error) || error.kind() == io::ErrorKind::InvalidInput;
            let errno = errno(&error);
            if !is_changing && errno != Errno::LOOP.raw_os_error() {
                let problem = FileProblem { action: FileAction::Read, path, errno };
                tell(Err(problem));
            }
        }
    }

    /// Sends a new or changed file, or its beginning.
    fn begin(
        &mut self,
        mut entry: FileEntry,
        out: &mut Vec<u8>,
        tell: &mut dyn FnMut(SentChange),
    ) -> io::Result<()> {
        let path = entry.path.clone();
        match entry.state.kind {
            FileEntryKind::Directory => {
                let mode = entry.state.mode;
                TreeChange::Directory { path, mode }.encode(out);
            }
            FileEntryKind::Link => {
                let (time, target) = (entry.state.time, self.walk.read_link(&entry)?);
                entry.state.size_bytes = target.len() as u64;
                TreeChange::Link { path, time, target }.encode(out);
            }
            FileEntryKind::File => {
                let (mut file, state) = self.walk.open(&entry)?;
                entry.state = state;
                let wanted = DATA_BYTES.min(clamp(entry.state.size_bytes));
                let content = read_part(&mut file, wanted)?;
                let sent_bytes = content.len() as u64;
                let is_whole = content.len() < wanted || sent_bytes == entry.state.size_bytes;
                TreeChange::File { path, state, content, is_whole }.encode(out);
                if !is_whole {
                    self.sending = Some(FileTransfer { file, entry, sent_bytes });
                    return Ok(());
                }
                entry.state.size_bytes = sent_bytes;
            }
        }
        tell(Ok(AppliedChange::Entry(entry)));
        Ok(())
    }

    /// Sends more of a file, up to its size when it was opened, or less if it has shrunk.
    fn send_more(&mut self, out: &mut Vec<u8>, tell: &mut dyn FnMut(SentChange)) {
        let Some(mut sending) = self.sending.take() else { return };
        let left = sending.entry.state.size_bytes - sending.sent_bytes;
        let wanted = DATA_BYTES.min(clamp(left));
        let read = read_part(&mut sending.file, wanted);
        let mut entry = sending.entry;
        match read {
            Ok(content) => {
                let count = content.len();
                if count > 0 {
                    TreeChange::Data(content).encode(out);
                }
                let sent_bytes = sending.sent_bytes + count as u64;
                if count == wanted && sent_bytes < entry.state.size_bytes {
                    self.sending = Some(FileTransfer { file: sending.file, entry, sent_bytes });
                    return;
                }
                TreeChange::End { is_whole: true }.encode(out);
                entry.state.size_bytes = sent_bytes;
                tell(Ok(AppliedChange::Entry(entry)));
            }
            Err(error) => {
                TreeChange::End { is_whole: false }.encode(out);
                let (action, path) = (FileAction::Read, entry.path);
                tell(Err(FileProblem { action, path, errno: errno(&error) }));
            }
        }
    }
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Reads a number of bytes, or less at the end of the file.
fn read_part(file: &mut File, wanted: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::with_capacity(wanted);
    file.take(wanted as u64).read_to_end(&mut content)?;
    Ok(content)
}
