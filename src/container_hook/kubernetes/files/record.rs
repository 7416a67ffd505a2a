//! What both ends had after the last exchange, in a file of the runner.
//!
//! It is read and written entry by entry, in the order of paths, and replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::init::files::Applied;
use crate::sys::init::frames::files::{Entry, order};

/// What a record begins with.
const MAGIC: &[u8] = b"oci-hooks files 1\n";
const READ_AT_ONCE: usize = 64 << 10;

/// The record of one container.
#[derive(Clone, Debug)]
pub struct Record {
    path: PathBuf,
}

impl Record {
    /// Returns the record that is kept in a file, which need not be there: nothing was exchanged then.
    pub(in crate::container_hook::kubernetes) fn new(path: PathBuf) -> Self {
        Record { path }
    }

    /// Forgets everything: the container is a new one.
    pub(in crate::container_hook::kubernetes) fn forget(&self) -> Result<(), PathError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(PathError::new("remove", &self.path, error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read(&self) -> Result<Reader, PathError> {
        Reader::open(&self.path).at("read", &self.path)
    }

    /// Begins the next record; this one remains until [`Update::finish`].
    pub(super) fn update(&self) -> Result<Update, PathError> {
        let next = self.path.with_extension("next");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&next).at("write", &next)?;
        let mut update = Update {
            before: self.read()?,
            peeked: None,
            out: BufWriter::with_capacity(READ_AT_ONCE, file),
            written_bytes: 0,
            last: None,
            is_changed: false,
            path: self.path.clone(),
            next,
        };
        update.write(MAGIC)?;
        Ok(update)
    }
}

/// The entries of a record.
pub struct Reader {
    file: Option<File>,
    buffer: Vec<u8>,
    /// How much of the buffer was taken.
    taken: usize,
    /// Where in the file the buffer begins.
    offset: u64,
}

impl Reader {
    fn open(path: &Path) -> io::Result<Self> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file?),
        };
        let mut reader = Reader { file, buffer: Vec::new(), taken: 0, offset: 0 };
        while reader.buffer.len() < MAGIC.len() && reader.fill()? {}
        if reader.buffer.starts_with(MAGIC) {
            reader.taken = MAGIC.len();
        } else {
            // Another version's: everything is exchanged anew.
            reader.file = None;
            reader.buffer.clear();
        }
        Ok(reader)
    }

    fn fill(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        self.buffer.drain(..self.taken);
        self.offset += self.taken as u64;
        self.taken = 0;
        let length = self.buffer.len();
        self.buffer.resize(length + READ_AT_ONCE, 0);
        let count = file.read(&mut self.buffer[length..])?;
        self.buffer.truncate(length + count);
        Ok(count > 0)
    }

    /// Returns the next entry.
    pub fn next(&mut self) -> io::Result<Option<Entry>> {
        loop {
            let mut rest = &self.buffer[self.taken..];
            let before = rest.len();
            match Entry::take_from(&mut rest).map_err(io::Error::other)? {
                Some(entry) => {
                    self.taken += before - rest.len();
                    return Ok(Some(entry));
                }
                None if self.fill()? => {}
                None => return Ok(None),
            }
        }
    }

    fn position(&self) -> u64 {
        self.offset + self.taken as u64
    }

    fn seek(&mut self, position: u64) -> io::Result<()> {
        self.buffer.clear();
        (self.taken, self.offset) = (0, position);
        match &mut self.file {
            Some(file) => file.seek(SeekFrom::Start(position)).map(drop),
            None => Ok(()),
        }
    }
}

/// The next record, as changes are made.
pub struct Update {
    before: Reader,
    /// The next entry of before, and where it begins.
    peeked: Option<(u64, Entry)>,
    out: BufWriter<File>,
    written_bytes: u64,
    /// The last change: what it replaced may still come.
    last: Option<Applied>,
    is_changed: bool,
    path: PathBuf,
    next: PathBuf,
}

/// A place to which an update can go back.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    before: u64,
    written_bytes: u64,
    last: Option<Applied>,
}

impl Update {
    fn write(&mut self, bytes: &[u8]) -> Result<(), PathError> {
        self.written_bytes += bytes.len() as u64;
        self.out.write_all(bytes).at("write", &self.next)
    }

    fn write_entry(&mut self, entry: &Entry) -> Result<(), PathError> {
        let mut bytes = Vec::with_capacity(entry.path.len() + size_of::<Entry>());
        entry.append_to(&mut bytes);
        self.write(&bytes)
    }

    /// Keeps what was before a path, or all.
    fn keep_before(&mut self, path: Option<&[u8]>) -> Result<(), PathError> {
        loop {
            if self.peeked.is_none() {
                let position = self.before.position();
                let entry = self.before.next().at("read", &self.path)?;
                self.peeked = entry.map(|entry| (position, entry));
            }
            let Some((position, entry)) = self.peeked.take() else { return Ok(()) };
            if path.is_some_and(|path| order(&entry.path, path).is_ge()) {
                self.peeked = Some((position, entry));
                return Ok(());
            }
            if !self.last.as_ref().is_some_and(|last| last.replaces(&entry.path)) {
                self.write_entry(&entry)?;
            }
        }
    }

    /// Notes a change; changes come in the order of paths.
    pub fn set(&mut self, change: Applied) -> Result<(), PathError> {
        self.keep_before(Some(change.path()))?;
        if let Applied::Entry(entry) = &change {
            self.write_entry(entry)?;
        }
        self.last = Some(change);
        self.is_changed = true;
        Ok(())
    }

    pub(super) fn checkpoint(&self) -> Checkpoint {
        let before = self.peeked.as_ref().map(|(position, _)| *position);
        Checkpoint {
            before: before.unwrap_or_else(|| self.before.position()),
            written_bytes: self.written_bytes,
            last: self.last.clone(),
        }
    }

    /// Forgets the changes since a place.
    pub fn rewind(&mut self, to: Checkpoint) -> Result<(), PathError> {
        let cut = |out: &mut BufWriter<File>| {
            out.flush()?;
            out.get_mut().set_len(to.written_bytes)?;
            out.seek(SeekFrom::Start(to.written_bytes))
        };
        cut(&mut self.out).at("write", &self.next)?;
        self.before.seek(to.before).at("read", &self.path)?;
        (self.peeked, self.written_bytes, self.last) = (None, to.written_bytes, to.last);
        Ok(())
    }

    /// Puts this record in the place of the one before, of which the rest is kept.
    pub fn finish(mut self) -> Result<(), PathError> {
        if !self.is_changed {
            return fs::remove_file(&self.next).at("remove", &self.next);
        }
        self.keep_before(None)?;
        self.out.flush().at("write", &self.next)?;
        fs::rename(&self.next, &self.path).at("write", &self.path)
    }
}
