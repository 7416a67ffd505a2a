//! From one container to another, through here and without this disk.

use std::path::Path;

use tokio::sync::Notify;

use super::error::{FilesError, Summary};
use super::exchange::{Attempts, Stopped, answer, both, stay};
use super::get::{Guard, ask};
use super::host::Limits;
use super::put::{answers, bytes};
use super::record::{Record, Update};
use crate::container_hook::kubernetes::agent::{Link, Receiving, Sending, Session};
use crate::sys::init::files::Applied;
use crate::sys::init::frames::FrameError;
use crate::sys::init::frames::files::{
    Change, DATA_BYTES, Entry, FilesAnswer, FilesRequest, Kind, Place as Within, Scope, Sender,
    State, Time,
};

/// A directory of a container.
pub struct Place<'p, 's> {
    pub session: &'p mut Session<'s>,
    pub root: &'p Path,
}

/// Sends what one container has changed since the last exchange to another one. The record is of these two;
/// after a transfer in one direction it serves for the other.
///
/// Fails if something cannot be written there; what cannot be read is told in the summary.
pub async fn transfer(
    from: Place<'_, '_>,
    to: Place<'_, '_>,
    scope: &Scope,
    record: &Record,
    limits: Limits,
) -> Result<Summary, FilesError> {
    let mut attempts = Attempts::default();
    loop {
        let mut update = record.update()?;
        let links = [from.session.link().await?, to.session.link().await?];
        let transfer = Transfer { from: from.root, to: to.root, scope, record, limits };
        let stopped = match transfer.run(links, &mut update).await {
            Ok(summary) => {
                update.finish()?;
                return Ok(summary);
            }
            Err(stopped) => stopped,
        };
        // Whichever was lost, the other one is in the middle of it.
        to.session.close();
        attempts.after(stopped, from.session, false).await?;
    }
}

struct Transfer<'t> {
    from: &'t Path,
    to: &'t Path,
    scope: &'t Scope,
    record: &'t Record,
    limits: Limits,
}

impl Transfer<'_> {
    async fn run(
        &self,
        [from, to]: [&mut Link; 2],
        update: &mut Update,
    ) -> Result<Summary, Stopped> {
        let (mut ask_from, mut get_from) = from.split();
        let (mut put_to, mut told_by) = to.split();
        let (got, put) = (Notify::new(), Notify::new());
        let source = async {
            ask(&mut ask_from, self.from, self.scope, self.record).await?;
            Ok::<(), Stopped>(stay(&mut ask_from, &got).await?)
        };
        let passed = async {
            let summary = self.pass(&mut get_from, &mut put_to, update).await?;
            got.notify_one();
            stay(&mut put_to, &put).await?;
            Ok(summary)
        };
        let told = async {
            let unmarked = &mut |_| Err(FrameError::Invalid("mark"));
            let trouble = answers(&mut told_by, self.to, unmarked).await?;
            put.notify_one();
            if trouble.is_empty() { Ok(()) } else { Err(FilesError::Failed(trouble).into()) }
        };
        let (_, (summary, ())) = both(source, both(passed, told)).await?;
        Ok(summary)
    }

    /// Passes changes on as they come.
    async fn pass(
        &self,
        from: &mut Receiving<'_>,
        to: &mut Sending<'_>,
        update: &mut Update,
    ) -> Result<Summary, Stopped> {
        let root = self.from.display().to_string();
        let (mut guard, mut summary) = (Guard::new(self.limits), Summary::default());
        let mut passing = Passing::default();
        let mut out = Vec::with_capacity(2 * DATA_BYTES);
        FilesRequest::Put { root: bytes(self.to) }.encode(&mut out);
        loop {
            let (kind, payload) = from.receive().await?;
            match answer(kind, &payload)? {
                None => {}
                Some(FilesAnswer::Change(change)) => {
                    guard.check(&change)?;
                    if let Some(applied) = passing.note(&change, self.scope)? {
                        summary.count(&applied);
                        update.set(applied)?;
                    }
                    change.encode(Sender::Host, &mut out);
                }
                Some(FilesAnswer::Problem(problem)) => {
                    guard.problem()?;
                    summary.unread.add(&root, &problem);
                }
                Some(FilesAnswer::Done(counts)) => {
                    (summary.entries, summary.skipped) = (counts.entries, counts.skipped);
                    FilesRequest::Done.encode(&mut out);
                    to.send(&out).await?;
                    return Ok(summary);
                }
                Some(FilesAnswer::Entries(_) | FilesAnswer::Mark(_)) => {
                    return Err(FrameError::UnknownKind(kind).into());
                }
            }
            if out.len() >= DATA_BYTES {
                to.send(&out).await?;
                out.clear();
            }
        }
    }
}

/// A file whose parts are passed on.
#[derive(Default)]
struct Passing(Option<Entry>);

impl Passing {
    /// Returns what a change comes to, when it is complete.
    fn note(&mut self, change: &Change, scope: &Scope) -> Result<Option<Applied>, FrameError> {
        let entry = |path: &Vec<u8>, kind, mode, size_bytes, time| {
            let state = State { kind, mode, size_bytes, time };
            let is_meant = scope.has(path, kind);
            is_meant.then(|| Entry { path: path.clone(), state }).ok_or(FrameError::Invalid("path"))
        };
        let none = Time::default();
        let complete = match change {
            Change::Directory { path, mode } => entry(path, Kind::Directory, *mode, 0, none)?,
            Change::Link { path, time, target } => {
                entry(path, Kind::Link, 0o777, target.len() as u64, *time)?
            }
            Change::File { path, state, content, is_whole } => {
                let size_bytes = content.len() as u64;
                let file = entry(path, Kind::File, state.mode, size_bytes, state.time)?;
                if !is_whole {
                    self.0 = Some(file);
                    return Ok(None);
                }
                file
            }
            Change::Data(content) => {
                if let Some(file) = &mut self.0 {
                    file.state.size_bytes += content.len() as u64;
                }
                return Ok(None);
            }
            Change::End { is_whole } => match self.0.take() {
                Some(file) if *is_whole => file,
                _ => return Ok(None),
            },
            Change::Remove(path) => {
                let is_meant = matches!(scope.place(path), Within::Root | Within::Within);
                let removed = || Applied::Removed(path.clone());
                return is_meant.then(removed).map(Some).ok_or(FrameError::Invalid("path"));
            }
        };
        Ok(Some(Applied::Entry(complete)))
    }
}
