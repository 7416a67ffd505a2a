//! The files that both ends had after the last exchange, as a file of the runner.
//!
//! A record is read and written entry by entry, in the order of paths, and replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, remove_if_there};
use oci_hooks_init::files::AppliedChange;
use oci_hooks_init::frames::files::{FileEntry, order};

/// First line of a record.
const MAGIC: &[u8] = b"oci-hooks files 1\n";
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
        RecordReader::open(&self.path).with_path("read", &self.path)
    }

    /// Starts the next record; the current one remains until [`RecordUpdate::finish`].
    pub(super) fn update(&self) -> Result<RecordUpdate, PathError> {
        let next = self.path.with_extension("next");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&next).with_path("write", &next)?;
        let mut update = RecordUpdate {
            before: self.read()?,
            peeked: None,
            out: BufWriter::with_capacity(READ_AT_ONCE, file),
            last: None,
            is_changed: false,
            path: self.path.clone(),
            next,
        };
        update.write(MAGIC)?;
        Ok(update)
    }
}

/// Reads the entries of a record.
pub struct RecordReader {
    file: Option<File>,
    buffer: Vec<u8>,
    /// Number of consumed bytes of the buffer.
    taken: usize,
}

impl RecordReader {
    fn open(path: &Path) -> io::Result<Self> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file?),
        };
        let mut reader = RecordReader { file, buffer: Vec::new(), taken: 0 };
        while reader.buffer.len() < MAGIC.len() && reader.fill()? {}
        if reader.buffer.starts_with(MAGIC) {
            reader.taken = MAGIC.len();
        } else {
            // A record of another version: everything is exchanged again.
            reader.file = None;
            reader.buffer.clear();
        }
        Ok(reader)
    }

    fn fill(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let length = self.buffer.len();
        self.buffer.resize(length + READ_AT_ONCE, 0);
        let count = file.read(&mut self.buffer[length..])?;
        self.buffer.truncate(length + count);
        Ok(count > 0)
    }

    /// Returns the next entry.
    pub fn next(&mut self) -> io::Result<Option<FileEntry>> {
        loop {
            let mut rest = &self.buffer[self.taken..];
            let before = rest.len();
            match FileEntry::take_from(&mut rest).map_err(io::Error::other)? {
                Some(entry) => {
                    self.taken += before - rest.len();
                    return Ok(Some(entry));
                }
                None if self.fill()? => {}
                None => return Ok(None),
            }
        }
    }
}

/// The next record, written while changes are applied.
pub struct RecordUpdate {
    before: RecordReader,
    /// Next entry of the old record.
    peeked: Option<FileEntry>,
    out: BufWriter<File>,
    /// Last change: entries that it replaced may follow.
    last: Option<AppliedChange>,
    is_changed: bool,
    path: PathBuf,
    next: PathBuf,
}

impl RecordUpdate {
    fn write(&mut self, bytes: &[u8]) -> Result<(), PathError> {
        self.out.write_all(bytes).with_path("write", &self.next)
    }

    fn write_entry(&mut self, entry: &FileEntry) -> Result<(), PathError> {
        let mut bytes = Vec::with_capacity(entry.path.len() + size_of::<FileEntry>());
        entry.append_to(&mut bytes);
        self.write(&bytes)
    }

    /// Copies the old entries before a path, or all remaining ones.
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
                self.write_entry(&entry)?;
            }
        }
    }

    /// Adds a change; changes come in the order of paths.
    pub fn set(&mut self, change: AppliedChange) -> Result<(), PathError> {
        self.keep_before(Some(change.path()))?;
        if let AppliedChange::Entry(entry) = &change {
            self.write_entry(entry)?;
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
