//! Downloads files from a container to the runner.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_init::files::{AppliedChange, WritableTree, WriterRole};
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{
    DATA_BYTES, ENTRIES_BYTES, FileEntry, FileEntryKind, FileEntryState, FileProblem, FileScope,
    FileTime, FilesFrame, ScopePosition, TreeChange, order,
};

use super::error::{ExchangeSummary, FileProblems, FilesError, is_full};
use super::exchange::{ExchangeAttempts, receive_answer, send_keepalives};
use super::host::{ExchangeLimits, HostTree};
use super::put::bytes;
use super::record::{ExchangeRecord, RecordUpdate};
use crate::agent::{AgentLink, AgentSession, FrameReceiver, FrameSender};

/// Downloads the changes of a container since the last exchange. Files that were removed in the
/// container are removed on the runner.
///
/// Fails if a file cannot be written on the runner. Files that cannot be read in the container are
/// listed in the summary. In both cases the other files are downloaded, unless the disk is full.
pub async fn get(
    session: &mut AgentSession<'_>,
    from: &Path,
    into: &HostTree,
    scope: &FileScope,
    record: &ExchangeRecord,
    limits: ExchangeLimits,
) -> Result<ExchangeSummary, FilesError> {
    let (mut attempts, mut summary) = (ExchangeAttempts::default(), ExchangeSummary::default());
    let mut guard = DownloadGuard::new(scope, limits);
    loop {
        let link = session.link().await?;
        guard.restart_paths();
        let mut update = record.update()?;
        let mut problems = FileProblems::default();
        let before = summary.written + summary.removed;
        summary.unread = FileProblems::default();
        let result = {
            let tree = WritableTree::new(into.root()?, scope, WriterRole::Host);
            let taken = DownloadSink {
                tree,
                into,
                from,
                guard: &mut guard,
                update: &mut update,
                summary: &mut summary,
                problems: &mut problems,
            };
            run(link, from, scope, record, taken).await
        };
        // The record covers all files written, also after a failure.
        update.finish()?;
        match result {
            Ok(()) => return problems.check().map(|()| summary),
            Err(error) => {
                let got_further = summary.written + summary.removed > before;
                attempts.handle_error(error, session, got_further).await?;
            }
        }
    }
}

async fn run(
    link: &mut AgentLink,
    from: &Path,
    scope: &FileScope,
    record: &ExchangeRecord,
    mut taken: DownloadSink<'_, '_>,
) -> Result<(), FilesError> {
    let AgentLink { sender, receiver } = link;
    let asked = async {
        ask(sender, from, scope, record).await?;
        send_keepalives(sender).await
    };
    tokio::select! {
        received = taken.receive(receiver) => received,
        failed = asked => failed,
    }
}

/// Requests the files that differ from a record.
pub async fn ask(
    to: &mut FrameSender,
    root: &Path,
    scope: &FileScope,
    record: &ExchangeRecord,
) -> Result<(), FilesError> {
    let mut out = Vec::new();
    FilesFrame::Get { root: bytes(root), scope: scope.clone() }.encode(&mut out);
    let mut before = record.read()?;
    let (mut entries, mut length): (Vec<FileEntry>, usize) = (Vec::new(), 0);
    while let Some(entry) = before.next().with_path("read", record.path())? {
        if !matches!(scope.position(&entry.path), ScopePosition::Root | ScopePosition::Within) {
            continue;
        }
        length += entry.path.len() + size_of::<FileEntry>();
        entries.push(entry);
        if length >= ENTRIES_BYTES {
            FilesFrame::Entries(std::mem::take(&mut entries)).encode(&mut out);
            to.send(&out).await?;
            out.clear();
            length = 0;
        }
    }
    if !entries.is_empty() {
        FilesFrame::Entries(entries).encode(&mut out);
    }
    FilesFrame::Entries(Vec::new()).encode(&mut out);
    Ok(to.send(&out).await?)
}

/// Checks of everything that an untrusted container sends.
pub struct DownloadGuard<'s> {
    scope: &'s FileScope,
    limits: ExchangeLimits,
    entries: u64,
    bytes: u64,
    last: Option<Vec<u8>>,
    /// File that is sent in parts, with the number of bytes so far.
    partial: Option<FileEntry>,
}

impl<'s> DownloadGuard<'s> {
    pub(super) fn new(scope: &'s FileScope, limits: ExchangeLimits) -> Self {
        DownloadGuard { scope, limits, entries: 0, bytes: 0, last: None, partial: None }
    }

    /// Prepares for an attempt that starts again at the first path; the counts are kept.
    pub fn restart_paths(&mut self) {
        (self.last, self.partial) = (None, None);
    }

    /// Checks a change: paths are within the scope, in order and unique, data belongs to a file, and the
    /// limits are not exceeded. Returns the change once it is complete.
    pub fn check(&mut self, change: &TreeChange) -> Result<Option<AppliedChange>, FilesError> {
        let content = match change {
            TreeChange::File { content, .. } | TreeChange::Data(content) => content.len(),
            _ => 0,
        };
        if content > DATA_BYTES {
            return Err(FrameError::TooLong { length: content, max: DATA_BYTES }.into());
        }
        match change.path() {
            Some(path) => {
                let is_later = |last: &Vec<u8>| order(last, path) == Ordering::Less;
                if self.partial.is_some() || !self.last.as_ref().is_none_or(is_later) {
                    return Err(FrameError::Invalid("path: it is out of order").into());
                }
                self.last = Some(path.to_vec());
                self.entries += 1;
            }
            None if self.partial.is_none() => {
                return Err(FrameError::Invalid("part of a file").into());
            }
            None => {}
        }
        self.bytes += content as u64;
        self.limits.check(self.entries, self.bytes)?;
        Ok(self.complete(change)?)
    }

    fn complete(&mut self, change: &TreeChange) -> Result<Option<AppliedChange>, FrameError> {
        let entry = |path: &[u8], kind, mode, size_bytes, time| {
            let state = FileEntryState { kind, mode, size_bytes, time };
            let is_meant = self.scope.has(path, kind);
            let entry = || FileEntry { path: path.to_vec(), state };
            is_meant.then(entry).ok_or(FrameError::Invalid("path"))
        };
        let complete = match change {
            TreeChange::Directory { path, mode } => {
                entry(path, FileEntryKind::Directory, *mode, 0, FileTime::default())?
            }
            TreeChange::Link { path, time, target } => {
                entry(path, FileEntryKind::Link, 0o777, target.len() as u64, *time)?
            }
            TreeChange::File { path, state, content, is_whole } => {
                let size_bytes = content.len() as u64;
                let file = entry(path, FileEntryKind::File, state.mode, size_bytes, state.time)?;
                if !is_whole {
                    self.partial = Some(file);
                    return Ok(None);
                }
                file
            }
            TreeChange::Data(content) => match &mut self.partial {
                Some(file) if !content.is_empty() => {
                    file.state.size_bytes += content.len() as u64;
                    return Ok(None);
                }
                _ => return Err(FrameError::Invalid("part of a file")),
            },
            TreeChange::End { is_whole } => match self.partial.take() {
                Some(file) if *is_whole => file,
                _ => return Ok(None),
            },
            TreeChange::Remove(path) => {
                let position = self.scope.position(path);
                let is_meant = matches!(position, ScopePosition::Root | ScopePosition::Within);
                let removed = || Some(AppliedChange::Removed(path.clone()));
                return is_meant.then(removed).ok_or(FrameError::Invalid("path"));
            }
        };
        Ok(Some(AppliedChange::Entry(complete)))
    }

    /// Counts a file that the container could not read towards the limits.
    pub fn problem(&mut self) -> Result<(), FilesError> {
        self.entries += 1;
        self.limits.check(self.entries, self.bytes)
    }
}

/// The receiving side of a download.
struct DownloadSink<'t, 's> {
    tree: WritableTree<'s>,
    into: &'t HostTree,
    from: &'t Path,
    guard: &'t mut DownloadGuard<'s>,
    update: &'t mut RecordUpdate,
    summary: &'t mut ExchangeSummary,
    problems: &'t mut FileProblems,
}

impl DownloadSink<'_, '_> {
    async fn receive(&mut self, from: &mut FrameReceiver) -> Result<(), FilesError> {
        let root = self.from.display().to_string();
        loop {
            match receive_answer(from).await? {
                FilesFrame::Change(change) => {
                    self.guard.check(&change)?;
                    self.apply(change)?;
                }
                FilesFrame::Problem(problem) => {
                    self.guard.problem()?;
                    self.summary.unread.add(&root, &problem);
                }
                FilesFrame::Done { skipped } => {
                    self.summary.skipped = skipped;
                    return Ok(());
                }
                _ => return Err(FrameError::Invalid("kind: it is out of order").into()),
            }
        }
    }

    fn apply(&mut self, change: TreeChange) -> Result<(), FilesError> {
        match self.tree.apply(change) {
            Ok(Some(applied)) => {
                self.summary.count(&applied);
                Ok(self.update.set(applied)?)
            }
            Ok(None) => Ok(()),
            Err(problem) if is_full(&problem) => Err(self.to_path_error(&problem).into()),
            Err(problem) => {
                self.problems.add(&self.into.name(), &problem);
                Ok(())
            }
        }
    }

    fn to_path_error(&self, problem: &FileProblem) -> PathError {
        let path = self.into.path().join(std::ffi::OsStr::from_bytes(&problem.path));
        PathError::new("write", &path, std::io::Error::from_raw_os_error(problem.errno))
    }
}
