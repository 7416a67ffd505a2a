//! Exchange of files with the host through its stream, by the protocol in `frames::files`.
//!
//! One operation after the other, with little memory: data is sent before more is read. The host
//! receives while it sends, so that neither end blocks the other.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::files::{ChangeFinder, ChangeEvent, WalkItem, WritableTree, TreeWriter, FileWalk};
use crate::frames::FrameError;
use crate::frames::files::{
    FileAction, TreeChange, FileCounts, DATA_BYTES, ENTRIES_BYTES, FileEntry, FilesAnswer, FilesRequest, FileEntryKind,
    FileProblem, FileScope, FrameOrigin,
};
use crate::os::at;
use crate::remote::{StreamError, ExecHost};

/// Size of buffered answers at which they are sent.
const SEND_AT_ONCE: usize = 16 << 10;
const O_NONBLOCK: i32 = 0o4000;
const EFBIG: i32 = 27;

/// Serves one request, with the frames that belong to it.
pub fn serve(kind: u8, payload: &[u8], host: &mut ExecHost) -> Result<(), StreamError> {
    let mut wire = FileExchange { host, out: Vec::new() };
    match FilesRequest::decode(kind, payload)? {
        FilesRequest::Put { root } => receive_files(&mut wire, path_of(&root)),
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

/// Frames from the host, and buffered answers to it.
struct FileExchange<'h> {
    host: &'h mut ExecHost,
    out: Vec<u8>,
}

impl FileExchange<'_> {
    fn next(&mut self) -> Result<FilesRequest, StreamError> {
        let (kind, payload) = self.host.receive()?;
        Ok(FilesRequest::decode(kind, &payload)?)
    }

    fn answer(&mut self, answer: &FilesAnswer) -> Result<(), StreamError> {
        answer.encode(&mut self.out);
        if self.out.len() < SEND_AT_ONCE { Ok(()) } else { self.flush() }
    }

    /// Sends buffered answers, or else a heartbeat from time to time.
    fn flush(&mut self) -> Result<(), StreamError> {
        if self.out.is_empty() {
            return self.host.tick();
        }
        self.host.send(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

fn problem(action: FileAction, path: &Path, error: &io::Error) -> FilesAnswer {
    let path = path.as_os_str().as_bytes().to_vec();
    FilesAnswer::Problem(FileProblem { action, path, errno: error.raw_os_error().unwrap_or(0) })
}

fn receive_files(wire: &mut FileExchange<'_>, root: &Path) -> Result<(), StreamError> {
    let scope = FileScope::all();
    let opened = fs::create_dir_all(root).and_then(|()| open_root(root));
    let mut tree = match opened {
        Ok(root) => Some(WritableTree::new(root, &scope, TreeWriter::Agent)),
        Err(error) => {
            wire.answer(&problem(FileAction::Write, root, &error))?;
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
    wire.answer(&FilesAnswer::Done(FileCounts::default()))?;
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

/// Entries of the last exchange, as the host sends them.
#[derive(Default)]
struct EarlierEntries {
    entries: VecDeque<FileEntry>,
    has_ended: bool,
}

impl EarlierEntries {
    fn next(&mut self, wire: &mut FileExchange<'_>) -> Result<Option<FileEntry>, StreamError> {
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

fn get(wire: &mut FileExchange<'_>, root: &Path, scope: &FileScope) -> Result<(), StreamError> {
    let mut before = EarlierEntries::default();
    let mut counts = FileCounts::default();
    match open_root(root).and_then(|root| ChangeFinder::new(root, scope, FrameOrigin::Agent)) {
        Ok(mut changes) => {
            let mut out = Vec::with_capacity(2 * DATA_BYTES);
            let mut has_more = true;
            while has_more {
                let mut problems = Vec::new();
                let mut tell = |event| {
                    if let ChangeEvent::Problem(problem) = event {
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
                    (Err(error), gone) => return Err(gone.unwrap_or(StreamError::Broken(error))),
                };
                wire.out.append(&mut out);
                for problem in problems {
                    FilesAnswer::Problem(problem).encode(&mut wire.out);
                }
                wire.flush()?;
            }
            counts = changes.counts();
        }
        Err(error) => wire.answer(&problem(FileAction::List, root, &error))?,
    }
    while before.next(wire)?.is_some() {}
    wire.answer(&FilesAnswer::Done(counts))?;
    wire.flush()
}

fn list(wire: &mut FileExchange<'_>, root: &Path, scope: &FileScope) -> Result<(), StreamError> {
    let mut counts = FileCounts::default();
    match open_root(root).and_then(|root| FileWalk::new(root, scope)) {
        Ok(mut walk) => {
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while let Some(found) = walk.next_found() {
                match found {
                    WalkItem::Entry(entry) => {
                        counts.entries += 1;
                        bytes += entry.path.len() + size_of::<FileEntry>();
                        entries.push(entry);
                    }
                    WalkItem::Problem(problem) => wire.answer(&FilesAnswer::Problem(problem))?,
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
            counts.skipped = walk.skipped_count();
        }
        Err(error) => wire.answer(&problem(FileAction::List, root, &error))?,
    }
    wire.answer(&FilesAnswer::Done(counts))?;
    wire.flush()
}

fn read(wire: &mut FileExchange<'_>, path: &Path, max_bytes: u64) -> Result<(), StreamError> {
    if let Err(error) = read_file(wire, path, max_bytes)? {
        wire.answer(&problem(FileAction::Read, path, &error))?;
    }
    wire.answer(&FilesAnswer::Done(FileCounts::default()))?;
    wire.flush()
}

/// Sends the file at a path; the inner error is about the file.
fn read_file(wire: &mut FileExchange<'_>, path: &Path, max_bytes: u64) -> Result<io::Result<()>, StreamError> {
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    let opened = opened.and_then(|file| {
        let stat = at::stat_open(&file)?;
        let state = stat.state().filter(|state| state.kind == FileEntryKind::File);
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
    let begin = TreeChange::File { path, state, content, is_whole };
    wire.answer(&FilesAnswer::Change(begin))?;
    let (mut buffer, mut left) = (vec![0; DATA_BYTES], max_bytes);
    loop {
        // One byte more than is allowed: the file may have grown.
        let wanted = DATA_BYTES.min(usize::try_from(left).map_or(DATA_BYTES, |left| left.saturating_add(1)));
        let read = match file.read(&mut buffer[..wanted]) {
            Ok(count) if count as u64 > left => Err(io::Error::from_raw_os_error(EFBIG)),
            read => read,
        };
        match read {
            Ok(0) => break,
            Ok(count) => {
                TreeChange::encode_data(&buffer[..count], FrameOrigin::Agent, &mut wire.out);
                wire.flush()?;
                left -= count as u64;
            }
            Err(error) => {
                wire.answer(&FilesAnswer::Change(TreeChange::End { is_whole: false }))?;
                return Ok(Err(error));
            }
        }
    }
    wire.answer(&FilesAnswer::Change(TreeChange::End { is_whole: true }))?;
    Ok(Ok(()))
}
