//! The files that both ends had after the last exchange, as a file of the runner.
//!
//! A record has the frames of its entries, in the order of paths. It is read and written entry by entry, and replaced
//! as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use oci_hooks_files::fs::{PathContext as _, PathError, remove_if_there};
use oci_hooks_init::files::AppliedChange;
use oci_hooks_init::frames::FrameBuffer;
use oci_hooks_init::frames::files::{ENTRIES_BYTES, FileEntry, FilesFrame, order};

const READ_AT_ONCE: usize = 64 << 10;

/// The record of one container.
#[derive(Clone, Debug)]
pub struct ExchangeRecord {
    path: PathBuf,
}

impl ExchangeRecord {
    /// Returns the record at a path; a missing file is an empty record.
    pub(crate) fn new(path: PathBuf) -> Self {
        ExchangeRecord { path }
    }

    /// Removes the record, for a new container.
    pub(crate) fn forget(&self) -> Result<(), PathError> {
        remove_if_there(&self.path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read(&self) -> Result<RecordReader, PathError> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file.with_path("read", &self.path)?),
        };
        let (frames, entries) = (FrameBuffer::new(ENTRIES_BYTES), Vec::new().into_iter());
        Ok(RecordReader { file, frames, entries })
    }

    /// Starts the next record; the current one remains until [`RecordUpdate::finish`].
    pub(super) fn update(&self) -> Result<RecordUpdate, PathError> {
        let next = self.path.with_extension("next");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&next).with_path("write", &next)?;
        Ok(RecordUpdate {
            before: self.read()?,
            peeked: None,
            out: BufWriter::with_capacity(READ_AT_ONCE, file),
            last: None,
            is_changed: false,
            path: self.path.clone(),
            next,
        })
    }
}

/// Reads the entries of a record.
pub struct RecordReader {
    file: Option<File>,
    frames: FrameBuffer,
    entries: IntoIter<FileEntry>,
}

impl RecordReader {
    fn fill(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let mut bytes = vec![0; READ_AT_ONCE];
        let count = file.read(&mut bytes)?;
        self.frames.push(&bytes[..count]);
        Ok(count > 0)
    }

    /// Returns the next entry; `None` at the end of the record.
    pub fn next(&mut self) -> io::Result<Option<FileEntry>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Ok(Some(entry));
            }
            match self.frames.decode_next(FilesFrame::decode).map_err(io::Error::other)? {
                Some(FilesFrame::Entries(entries)) => self.entries = entries.into_iter(),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None if self.fill()? => {}
                None => return Ok(None),
            }
        }
    }
}

/// The next record, written while changes are applied.
pub struct RecordUpdate {
    before: RecordReader,
    /// Next entry of the old record, read but not copied yet.
    peeked: Option<FileEntry>,
    out: BufWriter<File>,
    /// The last change. Entries of the old record that it replaced are not copied.
    last: Option<AppliedChange>,
    is_changed: bool,
    path: PathBuf,
    next: PathBuf,
}

impl RecordUpdate {
    fn write_entry(&mut self, entry: FileEntry) -> Result<(), PathError> {
        let mut bytes = Vec::new();
        FilesFrame::Entries(vec![entry]).encode(&mut bytes);
        self.out.write_all(&bytes).with_path("write", &self.next)
    }

    /// Copies the entries of the old record that come before `path`, or all remaining entries for
    /// `None`.
    fn keep_before(&mut self, path: Option<&[u8]>) -> Result<(), PathError> {
        loop {
            if self.peeked.is_none() {
                self.peeked = self.before.next().with_path("read", &self.path)?;
            }
            let Some(entry) = self.peeked.take() else { return Ok(()) };
            if path.is_some_and(|path| order(&entry.path, path).is_ge()) {
                self.peeked = Some(entry);
                return Ok(());
            }
            if !self.last.as_ref().is_some_and(|last| last.replaces(&entry.path)) {
                self.write_entry(entry)?;
            }
        }
    }

    /// Adds a change; changes come in the order of paths.
    pub fn set(&mut self, change: AppliedChange) -> Result<(), PathError> {
        self.keep_before(Some(change.path()))?;
        if let AppliedChange::Entry(entry) = &change {
            self.write_entry(entry.clone())?;
        }
        self.last = Some(change);
        self.is_changed = true;
        Ok(())
    }

    /// Copies the remaining old entries and replaces the old record.
    pub fn finish(mut self) -> Result<(), PathError> {
        if !self.is_changed {
            return fs::remove_file(&self.next).with_path("remove", &self.next);
        }
        self.keep_before(None)?;
        self.out.flush().with_path("write", &self.next)?;
        fs::rename(&self.next, &self.path).with_path("write", &self.path)
    }
}
