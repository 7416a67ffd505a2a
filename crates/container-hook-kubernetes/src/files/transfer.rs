//! Copies files from one container to another, without writing them to the runner's disk.

use std::path::Path;

use oci_hooks_init::files::AppliedChange;
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{
    DATA_BYTES, FileEntry, FileEntryKind, FileEntryState, FileScope, FileTime, FilesFrame,
    ScopePosition, TreeChange,
};

use super::error::{ExchangeSummary, FilesError};
use super::exchange::{ExchangeAttempts, receive_answer, send_keepalives};
use super::get::{DownloadGuard, ask};
use super::host::ExchangeLimits;
use super::put::{answers, bytes};
use super::record::{ExchangeRecord, RecordUpdate};
use crate::agent::{AgentLink, AgentSession, FrameReceiver, FrameSender};

/// A directory of a container, and the session with the container's agent.
pub struct ContainerDir<'p, 's> {
    pub session: &'p mut AgentSession<'s>,
    pub root: &'p Path,
}

/// Copies the changes of one container since the last exchange to another. The record belongs to the pair;
/// after a transfer in one direction it serves for the other.
///
/// Fails if a file cannot be written; files that cannot be read are listed in the summary.
pub async fn transfer(
    from: ContainerDir<'_, '_>,
    to: ContainerDir<'_, '_>,
    scope: &FileScope,
    record: &ExchangeRecord,
    limits: ExchangeLimits,
) -> Result<ExchangeSummary, FilesError> {
    let mut attempts = ExchangeAttempts::default();
    loop {
        let mut update = record.update()?;
        let links = [from.session.link().await?, to.session.link().await?];
        let transfer = Transfer { from: from.root, to: to.root, scope, record, limits };
        let error = match transfer.run(links, &mut update).await {
            Ok(summary) => {
                update.finish()?;
                return Ok(summary);
            }
            Err(error) => error,
        };
        // Either stream may be lost; the other one is in the middle of the exchange.
        to.session.close();
        attempts.handle_error(error, from.session, false).await?;
    }
}

struct Transfer<'t> {
    from: &'t Path,
    to: &'t Path,
    scope: &'t FileScope,
    record: &'t ExchangeRecord,
    limits: ExchangeLimits,
}

impl Transfer<'_> {
    async fn run(
        &self,
        [from, to]: [&mut AgentLink; 2],
        update: &mut RecordUpdate,
    ) -> Result<ExchangeSummary, FilesError> {
        let (ask_from, get_from) = from.split();
        let (put_to, told_by) = to.split();
        let source = async {
            ask(ask_from, self.from, self.scope, self.record).await?;
            send_keepalives(ask_from).await
        };
        let mut summary = None;
        let passed = async {
            summary = Some(self.pass(get_from, put_to, update).await?);
            send_keepalives(put_to).await
        };
        let told = async {
            let mut unmarked =
                |_: bool| -> Result<(), FilesError> { Err(FrameError::Invalid("mark").into()) };
            let problems = answers(told_by, self.to, &mut unmarked).await?;
            if problems.is_empty() { Ok(()) } else { Err(FilesError::Failed(problems)) }
        };
        tokio::select! {
            told = told => told?,
            failed = source => failed?,
            failed = passed => failed?,
        }
        // An agent is done once it was sent everything.
        summary.ok_or_else(|| FrameError::Invalid("kind: it is out of order").into())
    }

    /// Forwards changes as they arrive.
    async fn pass(
        &self,
        from: &mut FrameReceiver,
        to: &mut FrameSender,
        update: &mut RecordUpdate,
    ) -> Result<ExchangeSummary, FilesError> {
        let root = self.from.display().to_string();
        let (mut guard, mut summary) =
            (DownloadGuard::new(self.limits), ExchangeSummary::default());
        let mut passing = PartialFile::default();
        let mut out = Vec::with_capacity(2 * DATA_BYTES);
        FilesFrame::Put { root: bytes(self.to) }.encode(&mut out);
        loop {
            match receive_answer(from).await? {
                FilesFrame::Change(change) => {
                    guard.check(&change)?;
                    if let Some(applied) = passing.note(&change, self.scope)? {
                        summary.count(&applied);
                        update.set(applied)?;
                    }
                    change.encode(&mut out);
                }
                FilesFrame::Problem(problem) => {
                    guard.problem()?;
                    summary.unread.add(&root, &problem);
                }
                FilesFrame::Done { skipped } => {
                    summary.skipped = skipped;
                    FilesFrame::Done { skipped }.encode(&mut out);
                    to.send(&out).await?;
                    return Ok(summary);
                }
                _ => return Err(FrameError::Invalid("kind: it is out of order").into()),
            }
            if out.len() >= DATA_BYTES {
                to.send(&out).await?;
                out.clear();
            }
        }
    }
}

/// Entry of a file whose parts are being forwarded.
#[derive(Default)]
struct PartialFile(Option<FileEntry>);

impl PartialFile {
    /// Returns the applied change, once it is complete.
    fn note(
        &mut self,
        change: &TreeChange,
        scope: &FileScope,
    ) -> Result<Option<AppliedChange>, FrameError> {
        let entry = |path: &Vec<u8>, kind, mode, size_bytes, time| {
            let state = FileEntryState { kind, mode, size_bytes, time };
            let is_meant = scope.has(path, kind);
            is_meant
                .then(|| FileEntry { path: path.clone(), state })
                .ok_or(FrameError::Invalid("path"))
        };
        let none = FileTime::default();
        let complete = match change {
            TreeChange::Directory { path, mode } => {
                entry(path, FileEntryKind::Directory, *mode, 0, none)?
            }
            TreeChange::Link { path, time, target } => {
                entry(path, FileEntryKind::Link, 0o777, target.len() as u64, *time)?
            }
            TreeChange::File { path, state, content, is_whole } => {
                let size_bytes = content.len() as u64;
                let file = entry(path, FileEntryKind::File, state.mode, size_bytes, state.time)?;
                if !is_whole {
                    self.0 = Some(file);
                    return Ok(None);
                }
                file
            }
            TreeChange::Data(content) => {
                if let Some(file) = &mut self.0 {
                    file.state.size_bytes += content.len() as u64;
                }
                return Ok(None);
            }
            TreeChange::End { is_whole } => match self.0.take() {
                Some(file) if *is_whole => file,
                _ => return Ok(None),
            },
            TreeChange::Remove(path) => {
                let is_meant =
                    matches!(scope.position(path), ScopePosition::Root | ScopePosition::Within);
                let removed = || AppliedChange::Removed(path.clone());
                return is_meant.then(removed).map(Some).ok_or(FrameError::Invalid("path"));
            }
        };
        Ok(Some(AppliedChange::Entry(complete)))
    }
}
