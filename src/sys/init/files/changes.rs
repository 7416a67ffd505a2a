//! What differs in a tree from what the other end was told of it last, as frames.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use super::super::frames::files::{
    Action, Change, Counts, DATA_BYTES, Entry, Kind, Place, Problem, Scope, Sender, is_beneath,
    order,
};
use super::walk::{Found, Walk};
use super::{errno, is_missing};

const ENOTDIR: i32 = 20;
const ELOOP: i32 = 40;
/// How many files are looked at before who asks may do something else.
const FILES_AT_ONCE: usize = 256;

/// What is told of besides the frames, in the order of paths.
pub enum Event {
    /// It was sent as a whole, in this state.
    Sent(Entry),
    Removed(Vec<u8>),
    Problem(Problem),
}

/// The differences of a tree from what it was.
pub struct Changes<'s> {
    walk: Walk<'s>,
    scope: &'s Scope,
    sender: Sender,
    found: Option<Found>,
    before: Option<Entry>,
    before_ended: bool,
    /// What was before beneath this path is gone with it, or cannot be known.
    settled: Option<Vec<u8>>,
    sending: Option<Sending>,
    buffer: Vec<u8>,
    entries: u64,
}

/// A file that is sent in more than one frame.
struct Sending {
    file: File,
    entry: Entry,
    sent_bytes: u64,
}

impl<'s> Changes<'s> {
    /// Begins at a root that is open.
    pub fn new(root: OwnedFd, scope: &'s Scope, sender: Sender) -> io::Result<Self> {
        Ok(Changes {
            walk: Walk::new(root, scope)?,
            scope,
            sender,
            found: None,
            before: None,
            before_ended: false,
            settled: None,
            sending: None,
            buffer: vec![0; DATA_BYTES],
            entries: 0,
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { entries: self.entries, skipped: self.walk.skipped() }
    }

    /// Appends some frames; returns whether there may be more. `before` returns what there was, in the
    /// order of paths.
    pub fn fill(
        &mut self,
        out: &mut Vec<u8>,
        before: &mut dyn FnMut() -> io::Result<Option<Entry>>,
        tell: &mut dyn FnMut(Event),
    ) -> io::Result<bool> {
        for _ in 0..FILES_AT_ONCE {
            if out.len() >= DATA_BYTES {
                return Ok(true);
            }
            if self.sending.is_some() {
                self.go_on(out, tell);
                continue;
            }
            if self.found.is_none() {
                self.found = self.walk.next();
            }
            self.look_before(before)?;
            let order = match (&self.found, &self.before) {
                (None, None) => return Ok(false),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(found), Some(before)) => order(found.path(), &before.path),
            };
            let old = if order.is_ge() { self.before.take() } else { None };
            let new = if order.is_le() { self.found.take() } else { None };
            match (new, old) {
                (Some(Found::Problem(problem)), _) => {
                    self.settled = Some(problem.path.clone());
                    tell(Event::Problem(problem));
                }
                (Some(Found::Entry(entry)), old) => self.compare(entry, old, out, tell),
                (None, Some(old)) => {
                    self.settled = Some(old.path.clone());
                    Change::Remove(old.path.clone()).encode(self.sender, out);
                    tell(Event::Removed(old.path));
                }
                (None, None) => {}
            }
        }
        Ok(true)
    }

    /// Sees to it that the next entry of before is there that counts.
    fn look_before(
        &mut self,
        before: &mut dyn FnMut() -> io::Result<Option<Entry>>,
    ) -> io::Result<()> {
        while !self.before_ended {
            if let Some(old) = &self.before {
                let settled = self.settled.as_deref();
                let is_settled =
                    settled.is_some_and(|path| old.path == path || is_beneath(&old.path, path));
                let is_meant = matches!(self.scope.place(&old.path), Place::Root | Place::Within);
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
        entry: Entry,
        old: Option<Entry>,
        out: &mut Vec<u8>,
        tell: &mut dyn FnMut(Event),
    ) {
        self.entries += 1;
        if old.as_ref().is_some_and(|old| old.state.is_same(&entry.state)) {
            return;
        }
        if old.is_some_and(|old| old.state.kind == Kind::Directory)
            && entry.state.kind != Kind::Directory
        {
            self.settled = Some(entry.path.clone());
        }
        let path = entry.path.clone();
        if let Err(error) = self.begin(entry, out, tell) {
            // Gone, or something else by now: the next exchange sees it.
            let is_changing = is_missing(&error)
                || matches!(error.raw_os_error(), Some(ENOTDIR | ELOOP))
                || error.kind() == io::ErrorKind::InvalidInput;
            if !is_changing {
                let problem = Problem { action: Action::Read, path, errno: errno(&error) };
                tell(Event::Problem(problem));
            }
        }
    }

    /// Sends a file that is new or different, or its beginning.
    fn begin(
        &mut self,
        mut entry: Entry,
        out: &mut Vec<u8>,
        tell: &mut dyn FnMut(Event),
    ) -> io::Result<()> {
        let path = entry.path.clone();
        match entry.state.kind {
            Kind::Directory => {
                let mode = entry.state.mode;
                Change::Directory { path, mode }.encode(self.sender, out);
            }
            Kind::Link => {
                let (time, target) = (entry.state.time, self.walk.read_link(&entry)?);
                entry.state.size_bytes = target.len() as u64;
                Change::Link { path, time, target }.encode(self.sender, out);
            }
            Kind::File => {
                let (mut file, stat) = self.walk.open(&entry)?;
                let state = stat.state().filter(|state| state.kind == Kind::File);
                entry.state = state.ok_or(io::ErrorKind::InvalidInput)?;
                let wanted = DATA_BYTES.min(clamp(entry.state.size_bytes));
                let count = read_full(&mut file, &mut self.buffer[..wanted])?;
                let is_whole = count < wanted || count as u64 == entry.state.size_bytes;
                let content = self.buffer[..count].to_vec();
                let state = entry.state;
                Change::File { path, state, content, is_whole }.encode(self.sender, out);
                let sent_bytes = count as u64;
                if !is_whole {
                    self.sending = Some(Sending { file, entry, sent_bytes });
                    return Ok(());
                }
                entry.state.size_bytes = sent_bytes;
            }
        }
        tell(Event::Sent(entry));
        Ok(())
    }

    /// Sends more of a file: as much as it had when it was opened, or less if it has less by now.
    fn go_on(&mut self, out: &mut Vec<u8>, tell: &mut dyn FnMut(Event)) {
        let Some(mut sending) = self.sending.take() else { return };
        let left = sending.entry.state.size_bytes - sending.sent_bytes;
        let wanted = DATA_BYTES.min(clamp(left));
        let read = read_full(&mut sending.file, &mut self.buffer[..wanted]);
        let mut entry = sending.entry;
        match read {
            Ok(count) => {
                if count > 0 {
                    Change::encode_data(&self.buffer[..count], self.sender, out);
                }
                let sent_bytes = sending.sent_bytes + count as u64;
                if count == wanted && sent_bytes < entry.state.size_bytes {
                    self.sending = Some(Sending { file: sending.file, entry, sent_bytes });
                    return;
                }
                Change::End { is_whole: true }.encode(self.sender, out);
                entry.state.size_bytes = sent_bytes;
                tell(Event::Sent(entry));
            }
            Err(error) => {
                Change::End { is_whole: false }.encode(self.sender, out);
                let (action, path) = (Action::Read, entry.path);
                tell(Event::Problem(Problem { action, path, errno: errno(&error) }));
            }
        }
    }
}

fn clamp(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
