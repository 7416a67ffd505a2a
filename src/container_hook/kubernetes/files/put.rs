//! From the runner to a container.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::yield_now;

use super::error::{FilesError, Summary, Trouble, is_full, joined};
use super::exchange::{ALIVE, ALIVE_EVERY, Attempts, Stopped, answer, both, stay};
use super::host::HostTree;
use super::record::{Checkpoint, Record, Update};
use crate::container_hook::kubernetes::agent::{Link, Receiving, Sending, Session};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::init::files::{Applied, Changes, Event};
use crate::sys::init::frames::FrameError;
use crate::sys::init::frames::files::{
    Change, DATA_BYTES, FilesAnswer, FilesRequest, Scope, Sender,
};

/// After how many bytes, and after how many changes, the agent is asked how far it is.
const MARK_BYTES: usize = 1 << 20;
const MARK_CHANGES: u64 = 1000;

/// Sends what the runner has changed since the last exchange. What only the container has stays, but for
/// what the runner had and has no longer.
///
/// Fails if a file cannot be read here or written there; the others are sent all the same.
pub async fn put(
    session: &mut Session<'_>,
    from: &HostTree,
    to: &Path,
    scope: &Scope,
    record: &Record,
) -> Result<Summary, FilesError> {
    let (mut attempts, mut summary) = (Attempts::default(), Summary::default());
    loop {
        let link = session.link().await?;
        let run = Put::new(from, to, scope, record)?;
        let result = run.run(link).await;
        let got_further = run.finish(result.is_ok(), &mut summary)?;
        match result {
            Ok(()) => return Ok(summary),
            Err(stopped) => attempts.after(stopped, session, got_further).await?,
        }
    }
}

/// Makes some changes in a container that are not of a tree of the runner.
pub async fn put_changes(
    session: &mut Session<'_>,
    to: &Path,
    changes: &[Change],
) -> Result<(), FilesError> {
    let mut attempts = Attempts::default();
    loop {
        let (mut sending, mut receiving) = session.link().await?.split();
        let over = Notify::new();
        let result = both(
            async {
                let mut out = Vec::new();
                FilesRequest::Put { root: bytes(to) }.encode(&mut out);
                changes.iter().for_each(|change| change.encode(Sender::Host, &mut out));
                FilesRequest::Done.encode(&mut out);
                sending.send(&out).await?;
                Ok(stay(&mut sending, &over).await?)
            },
            async {
                let trouble = answers(&mut receiving, to, &mut |_| Ok(())).await?;
                over.notify_one();
                if trouble.is_empty() { Ok(()) } else { Err(FilesError::Failed(trouble).into()) }
            },
        );
        match result.await {
            Ok(_) => return Ok(()),
            Err(stopped) => attempts.after(stopped, session, false).await?,
        }
    }
}

/// Reads answers until all is done; returns what could not be.
pub async fn answers(
    from: &mut Receiving<'_>,
    root: &Path,
    marked: &mut dyn FnMut(u32) -> Result<(), FrameError>,
) -> Result<Trouble, Stopped> {
    let (root, mut trouble) = (root.display().to_string(), Trouble::default());
    loop {
        let (kind, payload) = from.receive().await?;
        match answer(kind, &payload)? {
            None => {}
            Some(FilesAnswer::Mark(number)) => marked(number)?,
            Some(FilesAnswer::Problem(problem)) if is_full(&problem) => {
                let path = joined(&root, &problem.path);
                return Err(FilesError::ContainerFull { path }.into());
            }
            Some(FilesAnswer::Problem(problem)) => trouble.add(&root, &problem),
            Some(FilesAnswer::Done(_)) => return Ok(trouble),
            Some(FilesAnswer::Entries(_) | FilesAnswer::Change(_)) => {
                return Err(FrameError::UnknownKind(kind).into());
            }
        }
    }
}

pub(super) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// One attempt.
struct Put<'p> {
    from: &'p HostTree,
    to: &'p Path,
    scope: &'p Scope,
    record: &'p Record,
    state: RefCell<State>,
    over: Notify,
}

/// What both directions have to do with.
struct State {
    update: Update,
    marks: VecDeque<(u32, Checkpoint)>,
    /// What the agent has done for certain.
    reached: Option<Checkpoint>,
    next_mark: u32,
    summary: Summary,
    trouble: Trouble,
    /// The first failure to keep the record.
    failed: Option<PathError>,
}

impl<'p> Put<'p> {
    fn new(
        from: &'p HostTree,
        to: &'p Path,
        scope: &'p Scope,
        record: &'p Record,
    ) -> Result<Self, FilesError> {
        let state = State {
            update: record.update()?,
            marks: VecDeque::new(),
            reached: None,
            next_mark: 0,
            summary: Summary::default(),
            trouble: Trouble::default(),
            failed: None,
        };
        Ok(Put { from, to, scope, record, state: RefCell::new(state), over: Notify::new() })
    }

    async fn run(&self, link: &mut Link) -> Result<(), Stopped> {
        let (mut sending, mut receiving) = link.split();
        both(self.send(&mut sending), self.receive(&mut receiving)).await?;
        let state = &mut *self.state.borrow_mut();
        if !state.trouble.is_empty() {
            return Err(FilesError::Failed(std::mem::take(&mut state.trouble)).into());
        }
        Ok(())
    }

    async fn send(&self, to: &mut Sending<'_>) -> Result<(), Stopped> {
        let mut out = Vec::with_capacity(2 * DATA_BYTES);
        FilesRequest::Put { root: bytes(self.to) }.encode(&mut out);
        let mut changes = Changes::new(self.from.root()?, self.scope, Sender::Host)
            .at("list", self.from.path())?;
        let mut before = self.record.read()?;
        let (mut unmarked_bytes, mut unmarked) = (0, 0);
        let mut sent = Instant::now();
        loop {
            let written = self.state.borrow().summary.written;
            let filled = changes.fill(&mut out, &mut || before.next(), &mut |event| {
                self.state.borrow_mut().note(event, self.from);
            });
            let has_more = filled.at("read", self.record.path())?;
            if let Some(error) = self.state.borrow_mut().failed.take() {
                return Err(error.into());
            }
            unmarked_bytes += out.len();
            unmarked += self.state.borrow().summary.written - written;
            if unmarked_bytes >= MARK_BYTES || unmarked >= MARK_CHANGES {
                FilesRequest::Mark(self.state.borrow_mut().mark()).encode(&mut out);
                (unmarked_bytes, unmarked) = (0, 0);
            }
            if out.is_empty() && sent.elapsed() >= ALIVE_EVERY {
                out.extend(ALIVE);
            }
            if out.is_empty() {
                yield_now().await;
            } else {
                to.send(&out).await?;
                out.clear();
                sent = Instant::now();
            }
            if !has_more {
                break;
            }
        }
        {
            let counts = changes.counts();
            let summary = &mut self.state.borrow_mut().summary;
            (summary.entries, summary.skipped) = (counts.entries, counts.skipped);
        }
        FilesRequest::Done.encode(&mut out);
        to.send(&out).await?;
        Ok(stay(to, &self.over).await?)
    }

    async fn receive(&self, from: &mut Receiving<'_>) -> Result<(), Stopped> {
        let mut marked = |number| {
            let state = &mut *self.state.borrow_mut();
            match state.marks.pop_front() {
                Some((mark, reached)) if mark == number => {
                    // What comes before a mark, and could not be done, was told before it.
                    state.reached = Some(reached);
                    Ok(())
                }
                _ => Err(FrameError::Invalid("mark")),
            }
        };
        let trouble = answers(from, self.to, &mut marked).await?;
        if !trouble.is_empty() {
            self.state.borrow_mut().trouble = trouble;
        }
        self.over.notify_one();
        Ok(())
    }

    /// Keeps the record of what was done, and adds to the summary; returns whether there was something.
    fn finish(self, is_complete: bool, summary: &mut Summary) -> Result<bool, FilesError> {
        let State { mut update, reached, summary: done, .. } = self.state.into_inner();
        summary.written += done.written;
        summary.removed += done.removed;
        summary.bytes += done.bytes;
        (summary.entries, summary.skipped) = (done.entries, done.skipped);
        let got_further = is_complete || reached.is_some();
        match reached {
            _ if is_complete => update.finish()?,
            Some(reached) => {
                update.rewind(reached)?;
                update.finish()?;
            }
            None => {}
        }
        Ok(got_further)
    }
}

impl State {
    fn note(&mut self, event: Event, from: &HostTree) {
        let change = match event {
            Event::Sent(entry) => Applied::Entry(entry),
            Event::Removed(path) => Applied::Removed(path),
            Event::Problem(problem) => {
                self.trouble.add(&from.name(), &problem);
                return;
            }
        };
        self.summary.count(&change);
        if let Err(error) = self.update.set(change) {
            self.failed.get_or_insert(error);
        }
    }

    /// Returns the number of a mark at this place.
    fn mark(&mut self) -> u32 {
        let number = self.next_mark;
        self.next_mark = number.wrapping_add(1);
        self.marks.push_back((number, self.update.checkpoint()));
        number
    }
}
