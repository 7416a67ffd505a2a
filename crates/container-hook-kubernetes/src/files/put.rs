//! Uploads files from the runner to a container.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_init::files::{AppliedChange, ChangeFinder, SentChange};
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{DATA_BYTES, FileScope, FilesFrame};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::error::{ExchangeSummary, FileProblems, FilesError, format_path, is_full};
use super::exchange::{ALIVE, ALIVE_EVERY, ExchangeAttempts, receive_answer, send_keepalives};
use super::host::HostTree;
use super::record::{ExchangeRecord, RecordUpdate};
use crate::agent::{AgentLink, AgentSession, FrameReceiver, FrameSender};

/// Number of bytes after which a mark is sent. The agent confirms a mark once it has written all
/// changes before it.
const MARK_BYTES: usize = 1 << 20;
/// Number of changes after which a mark is sent.
const MARK_CHANGES: u64 = 1000;
/// Maximum number of unconfirmed marks, whose changes are in memory: a hostile agent may confirm none.
const MAX_MARKS: usize = 16;

/// Uploads the changes of the runner since the last exchange. Files that only the container has are
/// kept, unless the runner has removed them.
///
/// Fails if a file cannot be read on the runner or written in the container. The other files are
/// still sent, unless the container's disk is full.
pub async fn upload_tree(
    session: &mut AgentSession<'_>,
    from: &HostTree,
    to: &Path,
    scope: &FileScope,
    record: &ExchangeRecord,
) -> Result<ExchangeSummary, FilesError> {
    let (mut attempts, mut summary) = (ExchangeAttempts::default(), ExchangeSummary::default());
    loop {
        let link = session.link().await?;
        let attempt = UploadAttempt::new(from, to, scope, record)?;
        let result = attempt.run(link).await;
        let got_further = attempt.finish(result.is_ok(), &mut summary)?;
        match result {
            Ok(()) => return Ok(summary),
            Err(error) => attempts.handle_error(error, session, got_further).await?,
        }
    }
}

/// Receives answers until the agent is done, and calls `marked` for each mark that the agent
/// confirms, with whether all changes before it were written. Returns the files that the agent could not
/// write.
pub async fn answers(
    from: &mut FrameReceiver,
    root: &Path,
    marked: &mut dyn FnMut(bool) -> Result<(), FilesError>,
) -> Result<FileProblems, FilesError> {
    let (root, mut problems) = (root.display().to_string(), FileProblems::default());
    loop {
        match receive_answer(from).await? {
            FilesFrame::Mark => marked(problems.is_empty())?,
            FilesFrame::Problem(problem) if is_full(&problem) => {
                let path = format_path(&root, &problem.path);
                return Err(FilesError::ContainerFull { path });
            }
            FilesFrame::Problem(problem) => problems.add(&root, &problem),
            FilesFrame::Done { .. } => return Ok(problems),
            _ => return Err(FrameError::Invalid("kind: it is out of order").into()),
        }
    }
}

pub(super) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

struct UploadAttempt<'p> {
    from: &'p HostTree,
    to: &'p Path,
    scope: &'p FileScope,
    record: &'p ExchangeRecord,
    state: RefCell<UploadState>,
    /// Notified of each confirmed mark.
    confirmed: Notify,
}

/// State shared by the sending and the receiving half of an upload.
struct UploadState {
    update: RecordUpdate,
    /// Changes that the agent has not confirmed: a list for each mark sent, and one for the changes
    /// after the last mark.
    unconfirmed: VecDeque<Vec<AppliedChange>>,
    /// Set once changes before a mark were recorded, which counts as progress.
    got_further: bool,
    /// Set once everything was sent, except perhaps the last frames.
    is_sent: bool,
    summary: ExchangeSummary,
    problems: FileProblems,
}

impl<'p> UploadAttempt<'p> {
    fn new(
        from: &'p HostTree,
        to: &'p Path,
        scope: &'p FileScope,
        record: &'p ExchangeRecord,
    ) -> Result<Self, PathError> {
        let state = RefCell::new(UploadState {
            update: record.update()?,
            unconfirmed: VecDeque::from([Vec::new()]),
            got_further: false,
            is_sent: false,
            summary: ExchangeSummary::default(),
            problems: FileProblems::default(),
        });
        Ok(UploadAttempt { from, to, scope, record, state, confirmed: Notify::new() })
    }

    async fn run(&self, link: &mut AgentLink) -> Result<(), FilesError> {
        let AgentLink { sender, receiver } = link;
        tokio::select! {
            received = self.receive(receiver) => received?,
            failed = self.send(sender) => failed?,
        }
        let state = &mut *self.state.borrow_mut();
        // An agent is done once it was sent everything.
        if !state.is_sent {
            return Err(FrameError::Invalid("kind: it is out of order").into());
        }
        std::mem::take(&mut state.problems).check()
    }

    async fn send(&self, to: &mut FrameSender) -> Result<(), FilesError> {
        let mut out = Vec::with_capacity(2 * DATA_BYTES);
        FilesFrame::Put { root: bytes(self.to) }.encode(&mut out);
        let mut changes =
            ChangeFinder::new(self.from.root()?, self.scope).with_path("list", self.from.path())?;
        let mut before = self.record.read()?;
        let (mut unmarked_bytes, mut unmarked) = (0, 0);
        let mut sent = Instant::now();
        loop {
            let written = self.state.borrow().summary.written;
            let filled = changes.fill(&mut out, &mut || before.next(), &mut |change| {
                self.state.borrow_mut().note(change, self.from);
            });
            let has_more = filled.with_path("read", self.record.path())?;
            unmarked_bytes += out.len();
            unmarked += self.state.borrow().summary.written - written;
            if unmarked_bytes >= MARK_BYTES || unmarked >= MARK_CHANGES {
                FilesFrame::Mark.encode(&mut out);
                self.state.borrow_mut().unconfirmed.push_back(Vec::new());
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
            while self.state.borrow().unconfirmed.len() > MAX_MARKS {
                if timeout(ALIVE_EVERY, self.confirmed.notified()).await.is_err() {
                    to.send(&ALIVE).await?;
                }
            }
        }
        self.state.borrow_mut().is_sent = true;
        FilesFrame::Done { skipped: changes.skipped_count() }.encode(&mut out);
        to.send(&out).await?;
        send_keepalives(to).await
    }

    async fn receive(&self, from: &mut FrameReceiver) -> Result<(), FilesError> {
        let mut marked = |is_written| {
            self.confirmed.notify_one();
            self.state.borrow_mut().confirm(is_written)
        };
        let problems = answers(from, self.to, &mut marked).await?;
        self.state.borrow_mut().problems.append(problems);
        Ok(())
    }

    /// Writes the confirmed changes to the exchange record, and adds to the summary. Returns
    /// whether the agent confirmed a mark.
    fn finish(self, is_complete: bool, summary: &mut ExchangeSummary) -> Result<bool, FilesError> {
        let UploadState { mut update, unconfirmed, got_further, summary: done, .. } =
            self.state.into_inner();
        summary.written += done.written;
        summary.removed += done.removed;
        summary.bytes += done.bytes;
        if is_complete {
            unconfirmed.into_iter().flatten().try_for_each(|change| update.set(change))?;
        }
        update.finish()?;
        Ok(got_further)
    }
}

impl UploadState {
    fn note(&mut self, sent: SentChange, from: &HostTree) {
        match sent {
            Ok(change) => {
                self.summary.count(&change);
                self.unconfirmed.back_mut().expect("there is always one").push(change);
            }
            Err(problem) => self.problems.add(&from.name(), &problem),
        }
    }

    /// Records the changes before the oldest unconfirmed mark, which the agent has confirmed, unless one of
    /// them or of earlier ones may have failed.
    fn confirm(&mut self, is_written: bool) -> Result<(), FilesError> {
        if self.unconfirmed.len() == 1 {
            return Err(FrameError::Invalid("mark").into());
        }
        let confirmed = self.unconfirmed.pop_front().unwrap_or_default();
        if !is_written {
            return Ok(());
        }
        self.got_further = true;
        Ok(confirmed.into_iter().try_for_each(|change| self.update.set(change))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::io::{empty, sink};

    use super::*;
    use crate::agent::testing::block_on;

    #[test]
    fn number_of_unconfirmed_marks_is_limited() {
        block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let tree = dir.path().join("tree");
            fs::create_dir(&tree).unwrap();
            let length = (2 * MAX_MARKS * MARK_BYTES) as u64;
            File::create(tree.join("file")).unwrap().set_len(length).unwrap();
            let (from, scope) = (HostTree::open(&tree).unwrap(), FileScope::all());
            let record = ExchangeRecord::new(dir.path().join("record"));
            let attempt = UploadAttempt::new(&from, Path::new("/"), &scope, &record).unwrap();
            let mut link = AgentLink::new(sink(), empty());
            let mut sending = pin!(attempt.send(&mut link.sender));
            while !attempt.state.borrow().is_sent {
                let polled = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
                assert!(polled.is_pending());
                {
                    let mut state = attempt.state.borrow_mut();
                    assert!(state.unconfirmed.len() <= MAX_MARKS + 1);
                    while state.unconfirmed.len() > 1 {
                        state.confirm(true).unwrap();
                    }
                }
                attempt.confirmed.notify_one();
                // The writer of the stream is another task.
                yield_now().await;
            }
        });
    }
}
