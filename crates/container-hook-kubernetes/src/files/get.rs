//! Downloads files from a container to the runner.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_init::files::{WritableTree, WriterRole};
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{
    DATA_BYTES, ENTRIES_BYTES, FileEntry, FileProblem, FileScope, FilesFrame, ScopePosition,
    TreeChange, order,
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
    let mut guard = DownloadGuard::new(limits);
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
            Ok(()) if problems.is_empty() => return Ok(summary),
            Ok(()) => return Err(FilesError::Failed(problems)),
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
    mut taken: DownloadSink<'_>,
) -> Result<(), FilesError> {
    let (sending, receiving) = link.split();
    let asked = async {
        ask(sending, from, scope, record).await?;
        send_keepalives(sending).await
    };
    tokio::select! {
        received = taken.receive(receiving) => received,
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
pub struct DownloadGuard {
    limits: ExchangeLimits,
    entries: u64,
    bytes: u64,
    last: Option<Vec<u8>>,
    is_within_file: bool,
}

impl DownloadGuard {
    pub(super) fn new(limits: ExchangeLimits) -> Self {
        DownloadGuard { limits, entries: 0, bytes: 0, last: None, is_within_file: false }
    }

    /// Prepares for an attempt that starts again at the first path; the counts are kept.
    pub fn restart_paths(&mut self) {
        (self.last, self.is_within_file) = (None, false);
    }

    /// Checks a change: paths are in order and unique, data belongs to a file, and the limits are not
    /// exceeded.
    pub fn check(&mut self, change: &TreeChange) -> Result<(), FilesError> {
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
                if self.is_within_file || !self.last.as_ref().is_none_or(is_later) {
                    return Err(FrameError::Invalid("path: it is out of order").into());
                }
                self.last = Some(path.to_vec());
                self.entries += 1;
            }
            None if !self.is_within_file => {
                return Err(FrameError::Invalid("part of a file").into());
            }
            None => {}
        }
        match change {
            TreeChange::File { is_whole, .. } => self.is_within_file = !is_whole,
            TreeChange::End { .. } => self.is_within_file = false,
            TreeChange::Data(content) if content.is_empty() => {
                return Err(FrameError::Invalid("part of a file").into());
            }
            _ => {}
        }
        self.bytes += content as u64;
        self.limits.check(self.entries, self.bytes)
    }

    /// Counts a file that the container could not read towards the limits.
    pub fn problem(&mut self) -> Result<(), FilesError> {
        self.entries += 1;
        self.limits.check(self.entries, self.bytes)
    }
}

/// The receiving side of a download.
struct DownloadSink<'t> {
    tree: WritableTree<'t>,
    into: &'t HostTree,
    from: &'t Path,
    guard: &'t mut DownloadGuard,
    update: &'t mut RecordUpdate,
    summary: &'t mut ExchangeSummary,
    problems: &'t mut FileProblems,
}

impl DownloadSink<'_> {
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
