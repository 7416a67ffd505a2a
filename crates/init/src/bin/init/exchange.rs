//! Exchange of files with the host through its stream, by the protocol in `frames::files`.
//!
//! One operation after the other, with little memory: data is sent before more is read. The host
//! receives while it sends, so that neither end blocks the other.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::os::path_of;
use crate::remote::{ExecHost, StreamError};
use oci_hooks_init::files::{ChangeFinder, SentChange, WritableTree, WriterRole};
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{
    DATA_BYTES, FileAction, FileEntry, FileProblem, FileScope, FilesFrame, TreeChange,
};
use rustix::fs::{Mode, OFlags, open};

/// Size of buffered answers at which they are sent.
const SEND_AT_ONCE: usize = 16 << 10;

/// Serves one request, with the frames that belong to it.
pub fn serve(kind: u8, payload: &[u8], host: &mut ExecHost) -> Result<(), StreamError> {
    let mut wire = FileExchange { host, out: Vec::new() };
    match FilesFrame::decode(kind, payload)? {
        FilesFrame::Put { root } => receive_files(&mut wire, path_of(&root)),
        FilesFrame::Get { root, scope } => get(&mut wire, path_of(&root), &scope),
        FilesFrame::Read { path } => read(&mut wire, path_of(&path)),
        _ => Err(FrameError::UnknownKind(kind).into()),
    }
}

/// Frames from the host, and buffered answers to it.
struct FileExchange<'h> {
    host: &'h mut ExecHost,
    out: Vec<u8>,
}

impl FileExchange<'_> {
    fn next(&mut self) -> Result<FilesFrame, StreamError> {
        let (kind, payload) = self.host.receive()?;
        Ok(FilesFrame::decode(kind, &payload)?)
    }

    fn answer(&mut self, answer: &FilesFrame) -> Result<(), StreamError> {
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

fn problem(action: FileAction, path: &Path, error: &io::Error) -> FilesFrame {
    let path = path.as_os_str().as_bytes().to_vec();
    FilesFrame::Problem(FileProblem { action, path, errno: error.raw_os_error().unwrap_or(0) })
}

fn receive_files(wire: &mut FileExchange<'_>, root: &Path) -> Result<(), StreamError> {
    let scope = FileScope::all();
    let opened = fs::create_dir_all(root).and_then(|()| open_root(root));
    let mut tree = match opened {
        Ok(root) => Some(WritableTree::new(root, &scope, WriterRole::Agent)),
        Err(error) => {
            wire.answer(&problem(FileAction::Write, root, &error))?;
            None
        }
    };
    loop {
        match wire.next()? {
            FilesFrame::Change(change) => {
                if let Some(Err(problem)) = tree.as_mut().map(|tree| tree.apply(change)) {
                    wire.answer(&FilesFrame::Problem(problem))?;
                }
            }
            FilesFrame::Mark => {
                wire.answer(&FilesFrame::Mark)?;
                wire.flush()?;
            }
            FilesFrame::Done { .. } => break,
            _ => return Err(FrameError::Invalid("kind: it is out of order").into()),
        }
    }
    wire.answer(&FilesFrame::Done { skipped: 0 })?;
    wire.flush()
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
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
            let FilesFrame::Entries(entries) = wire.next()? else {
                return Err(FrameError::Invalid("kind: it is out of order").into());
            };
            self.has_ended = entries.is_empty();
            self.entries = entries.into();
        }
        Ok(self.entries.pop_front())
    }
}

fn get(wire: &mut FileExchange<'_>, root: &Path, scope: &FileScope) -> Result<(), StreamError> {
    let mut before = EarlierEntries::default();
    let mut skipped = 0;
    match open_root(root).and_then(|root| ChangeFinder::new(root, scope)) {
        Ok(mut changes) => {
            let (mut out, mut problems) = (Vec::with_capacity(2 * DATA_BYTES), Vec::new());
            let mut has_more = true;
            while has_more {
                let mut tell = |sent: SentChange| problems.extend(sent.err());
                has_more = changes.fill(&mut out, &mut || before.next(wire), &mut tell)?;
                wire.out.append(&mut out);
                for problem in problems.drain(..) {
                    FilesFrame::Problem(problem).encode(&mut wire.out);
                }
                wire.flush()?;
            }
            skipped = changes.skipped_count();
        }
        Err(error) => wire.answer(&problem(FileAction::List, root, &error))?,
    }
    while before.next(wire)?.is_some() {}
    wire.answer(&FilesFrame::Done { skipped })?;
    wire.flush()
}

/// Sends the content of a file, or the problem with it.
fn read(wire: &mut FileExchange<'_>, path: &Path) -> Result<(), StreamError> {
    match read_file(path) {
        Ok(content) => TreeChange::Data(content).encode(&mut wire.out),
        Err(error) => wire.answer(&problem(FileAction::Read, path, &error))?,
    }
    wire.flush()
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::new();
    file.take(DATA_BYTES as u64 + 1).read_to_end(&mut content)?;
    if content.len() > DATA_BYTES {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(content)
}
