//! From a container to the runner.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use tokio::sync::Notify;

use super::error::{FilesError, Summary, Trouble, is_full};
use super::exchange::{Attempts, Stopped, answer, both, stay};
use super::host::{HostTree, Limits};
use super::put::bytes;
use super::record::{Record, Update};
use crate::container_hook::kubernetes::agent::{Link, Receiving, Sending, Session};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::init::files::{Tree, TreeWriter};
use crate::sys::init::frames::FrameError;
use crate::sys::init::frames::files::{
    Change, DATA_BYTES, ENTRIES_BYTES, Entry, FilesAnswer, FilesRequest, Place, Problem, Scope,
    order,
};

/// Takes what a container has changed since the last exchange: what it has no longer, the runner has no
/// longer either.
///
/// Fails if something cannot be written here; what cannot be read there is told in the summary. In both
/// cases the rest is taken.
pub async fn get(
    session: &mut Session<'_>,
    from: &Path,
    into: &HostTree,
    scope: &Scope,
    record: &Record,
    limits: Limits,
) -> Result<Summary, FilesError> {
    let (mut attempts, mut summary) = (Attempts::default(), Summary::default());
    let mut guard = Guard::new(limits);
    loop {
        let link = session.link().await?;
        guard.again();
        let mut update = record.update()?;
        let mut trouble = Trouble::default();
        let before = summary.written + summary.removed;
        summary.unread = Trouble::default();
        let result = {
            let tree = Tree::new(into.root()?, scope, TreeWriter::Host);
            let taken = Taken {
                tree,
                into,
                from,
                guard: &mut guard,
                update: &mut update,
                summary: &mut summary,
                trouble: &mut trouble,
            };
            run(link, from, scope, record, taken).await
        };
        // What was written is what both have, however it went on.
        update.finish()?;
        match result {
            Ok(()) if trouble.is_empty() => return Ok(summary),
            Ok(()) => return Err(FilesError::Failed(trouble)),
            Err(stopped) => {
                let got_further = summary.written + summary.removed > before;
                attempts.after(stopped, session, got_further).await?;
            }
        }
    }
}

async fn run(
    link: &mut Link,
    from: &Path,
    scope: &Scope,
    record: &Record,
    mut taken: Taken<'_>,
) -> Result<(), Stopped> {
    let (mut sending, mut receiving) = link.split();
    let over = Notify::new();
    let asked = async {
        ask(&mut sending, from, scope, record).await?;
        Ok(stay(&mut sending, &over).await?)
    };
    let received = async {
        taken.receive(&mut receiving).await?;
        over.notify_one();
        Ok(())
    };
    both(asked, received).await.map(|_| ())
}

/// Asks for what differs from a record.
pub async fn ask(
    to: &mut Sending<'_>,
    root: &Path,
    scope: &Scope,
    record: &Record,
) -> Result<(), Stopped> {
    let mut out = Vec::new();
    FilesRequest::Get { root: bytes(root), scope: scope.clone() }.encode(&mut out);
    let mut before = record.read()?;
    let (mut entries, mut length): (Vec<Entry>, usize) = (Vec::new(), 0);
    while let Some(entry) = before.next().at("read", record.path())? {
        if !matches!(scope.place(&entry.path), Place::Root | Place::Within) {
            continue;
        }
        length += entry.path.len() + size_of::<Entry>();
        entries.push(entry);
        if length >= ENTRIES_BYTES {
            FilesRequest::Entries(std::mem::take(&mut entries)).encode(&mut out);
            to.send(&out).await?;
            out.clear();
            length = 0;
        }
    }
    if !entries.is_empty() {
        FilesRequest::Entries(entries).encode(&mut out);
    }
    FilesRequest::Entries(Vec::new()).encode(&mut out);
    Ok(to.send(&out).await?)
}

/// What is seen to of all that comes from a container, before it is believed.
pub struct Guard {
    limits: Limits,
    entries: u64,
    bytes: u64,
    last: Option<Vec<u8>>,
    is_within_file: bool,
}

impl Guard {
    pub(super) fn new(limits: Limits) -> Self {
        Guard { limits, entries: 0, bytes: 0, last: None, is_within_file: false }
    }

    /// Begins again with the first path; what has come counts.
    pub fn again(&mut self) {
        (self.last, self.is_within_file) = (None, false);
    }

    /// Checks a change: paths come in order, and so but once, bytes belong to a file, and there are not too many.
    pub fn check(&mut self, change: &Change) -> Result<(), FilesError> {
        let content = match change {
            Change::File { content, .. } | Change::Data(content) => content.len(),
            _ => 0,
        };
        if content > DATA_BYTES {
            return Err(FrameError::TooLong { length: content, max: DATA_BYTES }.into());
        }
        match change.path() {
            Some(path) => {
                let is_later = |last: &Vec<u8>| order(last, path) == Ordering::Less;
                if self.is_within_file || !self.last.as_ref().is_none_or(is_later) {
                    return Err(FrameError::Invalid("order of paths").into());
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
            Change::File { is_whole, .. } => self.is_within_file = !is_whole,
            Change::End { .. } => self.is_within_file = false,
            Change::Data(content) if content.is_empty() => {
                return Err(FrameError::Invalid("part of a file").into());
            }
            _ => {}
        }
        self.bytes += content as u64;
        self.limits.check(self.entries, self.bytes)
    }

    /// Counts a problem.
    pub fn problem(&mut self) -> Result<(), FilesError> {
        self.entries += 1;
        self.limits.check(self.entries, self.bytes)
    }
}

/// What is done with what comes.
struct Taken<'t> {
    tree: Tree<'t>,
    into: &'t HostTree,
    from: &'t Path,
    guard: &'t mut Guard,
    update: &'t mut Update,
    summary: &'t mut Summary,
    trouble: &'t mut Trouble,
}

impl Taken<'_> {
    async fn receive(&mut self, from: &mut Receiving<'_>) -> Result<(), Stopped> {
        let root = self.from.display().to_string();
        loop {
            let (kind, payload) = from.receive().await?;
            match answer(kind, &payload)? {
                None => {}
                Some(FilesAnswer::Change(change)) => {
                    self.guard.check(&change)?;
                    self.apply(change)?;
                }
                Some(FilesAnswer::Problem(problem)) => {
                    self.guard.problem()?;
                    self.summary.unread.add(&root, &problem);
                }
                Some(FilesAnswer::Done(counts)) => {
                    self.summary.entries = counts.entries;
                    self.summary.skipped = counts.skipped;
                    return Ok(());
                }
                Some(FilesAnswer::Entries(_) | FilesAnswer::Mark(_)) => {
                    return Err(FrameError::UnknownKind(kind).into());
                }
            }
        }
    }

    fn apply(&mut self, change: Change) -> Result<(), FilesError> {
        match self.tree.apply(change) {
            Ok(Some(applied)) => {
                self.summary.count(&applied);
                Ok(self.update.set(applied)?)
            }
            Ok(None) => Ok(()),
            Err(problem) if is_full(&problem) => Err(self.full(&problem).into()),
            Err(problem) => {
                self.trouble.add(&self.into.name(), &problem);
                Ok(())
            }
        }
    }

    fn full(&self, problem: &Problem) -> PathError {
        let path = self.into.path().join(std::ffi::OsStr::from_bytes(&problem.path));
        PathError::new("write", &path, std::io::Error::from_raw_os_error(problem.errno))
    }
}
