//! Files for the host, through the stream that it has opened: `frames::files` says how.
//!
//! One thing after the other, with little memory: what is read goes out before more is read. The host
//! takes what is sent while it sends, so that neither waits for the other.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::files::{Changes, Event, Found, Tree, TreeWriter, Walk};
use crate::frames::FrameError;
use crate::frames::files::{
    Action, Change, Counts, DATA_BYTES, ENTRIES_BYTES, Entry, FilesAnswer, FilesRequest, Kind,
    Problem, Scope, Sender,
};
use crate::os::at;
use crate::remote::{Gone, Host};

/// How much is kept before it is sent.
const SEND_AT_ONCE: usize = 16 << 10;
const O_NONBLOCK: i32 = 0o4000;
const EFBIG: i32 = 27;

/// Serves one request and what belongs to it.
pub fn serve(kind: u8, payload: &[u8], host: &mut Host) -> Result<(), Gone> {
    let mut wire = Wire { host, out: Vec::new() };
    match FilesRequest::decode(kind, payload)? {
        FilesRequest::Put { root } => put(&mut wire, path_of(&root)),
        FilesRequest::Get { root, scope } => get(&mut wire, path_of(&root), &scope),
        FilesRequest::List { root, scope } => list(&mut wire, path_of(&root), &scope),
        FilesRequest::Read { path, max_bytes } => read(&mut wire, path_of(&path), max_bytes),
        FilesRequest::Change(_)
        | FilesRequest::Entries(_)
        | FilesRequest::Mark(_)
        | FilesRequest::Done => Err(FrameError::UnknownKind(kind).into()),
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// What comes from the host, and what is about to go to it.
struct Wire<'h> {
    host: &'h mut Host,
    out: Vec<u8>,
}

impl Wire<'_> {
    fn next(&mut self) -> Result<FilesRequest, Gone> {
        let (kind, payload) = self.host.receive()?;
        Ok(FilesRequest::decode(kind, &payload)?)
    }

    fn answer(&mut self, answer: &FilesAnswer) -> Result<(), Gone> {
        answer.encode(&mut self.out);
        if self.out.len() < SEND_AT_ONCE { Ok(()) } else { self.flush() }
    }

    /// Sends what there is, or from time to time that we are here.
    fn flush(&mut self) -> Result<(), Gone> {
        if self.out.is_empty() {
            return self.host.tick();
        }
        self.host.send(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

fn problem(action: Action, path: &Path, error: &io::Error) -> FilesAnswer {
    let path = path.as_os_str().as_bytes().to_vec();
    FilesAnswer::Problem(Problem { action, path, errno: error.raw_os_error().unwrap_or(0) })
}

fn put(wire: &mut Wire<'_>, root: &Path) -> Result<(), Gone> {
    let scope = Scope::all();
    let opened = fs::create_dir_all(root).and_then(|()| open_root(root));
    let mut tree = match opened {
        Ok(root) => Some(Tree::new(root, &scope, TreeWriter::Agent)),
        Err(error) => {
            wire.answer(&problem(Action::Write, root, &error))?;
            None
        }
    };
    loop {
        match wire.next()? {
            FilesRequest::Change(change) => {
                if let Some(Err(problem)) = tree.as_mut().map(|tree| tree.apply(change)) {
                    wire.answer(&FilesAnswer::Problem(problem))?;
                }
            }
            FilesRequest::Mark(number) => {
                wire.answer(&FilesAnswer::Mark(number))?;
                wire.flush()?;
            }
            FilesRequest::Done => break,
            _ => return Err(FrameError::Invalid("order of frames").into()),
        }
    }
    wire.answer(&FilesAnswer::Done(Counts::default()))?;
    wire.flush()
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let root = File::open(root)?;
    if root.metadata()?.is_dir() {
        Ok(root.into())
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    }
}

/// What the host knows, as it comes.
#[derive(Default)]
struct Before {
    entries: VecDeque<Entry>,
    has_ended: bool,
}

impl Before {
    fn next(&mut self, wire: &mut Wire<'_>) -> Result<Option<Entry>, Gone> {
        if self.entries.is_empty() && !self.has_ended {
            let FilesRequest::Entries(entries) = wire.next()? else {
                return Err(FrameError::Invalid("order of frames").into());
            };
            self.has_ended = entries.is_empty();
            self.entries = entries.into();
        }
        Ok(self.entries.pop_front())
    }
}

fn get(wire: &mut Wire<'_>, root: &Path, scope: &Scope) -> Result<(), Gone> {
    let mut before = Before::default();
    let mut counts = Counts::default();
    match open_root(root).and_then(|root| Changes::new(root, scope, Sender::Agent)) {
        Ok(mut changes) => {
            let mut out = Vec::with_capacity(2 * DATA_BYTES);
            let mut has_more = true;
            while has_more {
                let mut problems = Vec::new();
                let mut tell = |event| {
                    if let Event::Problem(problem) = event {
                        problems.push(problem);
                    }
                };
                let mut gone = None;
                let mut next = || {
                    before.next(wire).map_err(|error| {
                        gone = Some(error);
                        io::ErrorKind::BrokenPipe.into()
                    })
                };
                has_more = match (changes.fill(&mut out, &mut next, &mut tell), gone) {
                    (Ok(has_more), _) => has_more,
                    (Err(error), gone) => return Err(gone.unwrap_or(Gone::Broken(error))),
                };
                wire.out.append(&mut out);
                for problem in problems {
                    FilesAnswer::Problem(problem).encode(&mut wire.out);
                }
                wire.flush()?;
            }
            counts = changes.counts();
        }
        Err(error) => wire.answer(&problem(Action::List, root, &error))?,
    }
    while before.next(wire)?.is_some() {}
    wire.answer(&FilesAnswer::Done(counts))?;
    wire.flush()
}

fn list(wire: &mut Wire<'_>, root: &Path, scope: &Scope) -> Result<(), Gone> {
    let mut counts = Counts::default();
    match open_root(root).and_then(|root| Walk::new(root, scope)) {
        Ok(mut walk) => {
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while let Some(found) = walk.next() {
                match found {
                    Found::Entry(entry) => {
                        counts.entries += 1;
                        bytes += entry.path.len() + size_of::<Entry>();
                        entries.push(entry);
                    }
                    Found::Problem(problem) => wire.answer(&FilesAnswer::Problem(problem))?,
                }
                if bytes >= ENTRIES_BYTES {
                    wire.answer(&FilesAnswer::Entries(std::mem::take(&mut entries)))?;
                    wire.flush()?;
                    bytes = 0;
                }
            }
            if !entries.is_empty() {
                wire.answer(&FilesAnswer::Entries(entries))?;
            }
            counts.skipped = walk.skipped();
        }
        Err(error) => wire.answer(&problem(Action::List, root, &error))?,
    }
    wire.answer(&FilesAnswer::Done(counts))?;
    wire.flush()
}

fn read(wire: &mut Wire<'_>, path: &Path, max_bytes: u64) -> Result<(), Gone> {
    if let Err(error) = read_file(wire, path, max_bytes)? {
        wire.answer(&problem(Action::Read, path, &error))?;
    }
    wire.answer(&FilesAnswer::Done(Counts::default()))?;
    wire.flush()
}

/// Sends the file that a path leads to; the inner error is about the file.
fn read_file(wire: &mut Wire<'_>, path: &Path, max_bytes: u64) -> Result<io::Result<()>, Gone> {
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    let opened = opened.and_then(|file| {
        let stat = at::stat_open(&file)?;
        let state = stat.state().filter(|state| state.kind == Kind::File);
        Ok((file, state.ok_or(io::ErrorKind::InvalidInput)?))
    });
    let (mut file, state) = match opened {
        Ok((_, state)) if state.size_bytes > max_bytes => {
            return Ok(Err(io::Error::from_raw_os_error(EFBIG)));
        }
        Ok(opened) => opened,
        Err(error) => return Ok(Err(error)),
    };
    let (path, content, is_whole) = (b"file".to_vec(), Vec::new(), false);
    let begin = Change::File { path, state, content, is_whole };
    wire.answer(&FilesAnswer::Change(begin))?;
    let (mut buffer, mut left) = (vec![0; DATA_BYTES], max_bytes);
    loop {
        let wanted = DATA_BYTES.min(usize::try_from(left).unwrap_or(DATA_BYTES));
        match file.read(&mut buffer[..wanted]) {
            Ok(0) => break,
            Ok(count) => {
                Change::encode_data(&buffer[..count], Sender::Agent, &mut wire.out);
                wire.flush()?;
                left -= count as u64;
            }
            Err(error) => {
                wire.answer(&FilesAnswer::Change(Change::End { is_whole: false }))?;
                return Ok(Err(error));
            }
        }
    }
    wire.answer(&FilesAnswer::Change(Change::End { is_whole: true }))?;
    Ok(Ok(()))
}
