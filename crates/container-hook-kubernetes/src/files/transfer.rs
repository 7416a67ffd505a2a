//! Copies files from one container to another, without writing them to the runner's disk.

use std::path::Path;

use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{DATA_BYTES, FileScope, FilesFrame};

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
        let AgentLink { sender: ask_from, receiver: get_from } = from;
        let AgentLink { sender: put_to, receiver: told_by } = to;
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
            answers(told_by, self.to, &mut unmarked).await?.check()
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
        let mut guard = DownloadGuard::new(self.scope, self.limits);
        let mut summary = ExchangeSummary::default();
        let mut out = Vec::with_capacity(2 * DATA_BYTES);
        FilesFrame::Put { root: bytes(self.to) }.encode(&mut out);
        loop {
            match receive_answer(from).await? {
                FilesFrame::Change(change) => {
                    if let Some(applied) = guard.check(&change)? {
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
