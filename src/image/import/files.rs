//! The files of an image: in a directory or in an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::error::ImportError;
use crate::image::UnpackError;
use crate::image::layer::{Archive, DecoderError, Entry, Kind, decoder};
use crate::sys::beneath::Beneath;
use crate::sys::fs::PathContext as _;

/// More files than an image has layers and documents.
const MAX_ENTRIES: usize = 100_000;

/// More links in a row than anybody writes.
const MAX_LINKS: usize = 8;

/// Longer names than any file of an image has.
const MAX_NAME_BYTES: usize = 512;

/// The files of an image.
#[derive(Debug)]
pub enum Files {
    Directory(Beneath),
    Archive { file: File, index: HashMap<String, Place> },
}

/// Where a file of an archive is.
#[derive(Debug)]
pub enum Place {
    Data {
        offset: u64,
        size: u64,
    },
    /// Old versions of Docker save a layer that two images have once, and link to it.
    Link(String),
}

impl Files {
    /// Opens a directory or an archive. A compressed archive is inflated into a nameless file in
    /// the directory `scratch`, of at most `max_bytes`.
    pub(in crate::image) fn open(
        path: &Path,
        scratch: &Path,
        max_bytes: u64,
    ) -> Result<Self, ImportError> {
        // A FIFO must not make us wait for who writes into it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, path, flags, Mode::empty()).at("open", path)?);
        let metadata = file.metadata().at("read", path)?;
        if metadata.is_dir() {
            return Ok(Files::Directory(Beneath::from_fd(file.into(), path)));
        }
        if !metadata.is_file() {
            return Err(ImportError::Format { path: path.to_owned() });
        }
        let file = inflated(file, path, scratch, max_bytes)?;
        Self::of_archive(file, path)
    }

    /// Takes an archive that is open and not compressed; the path is for messages.
    pub(in crate::image) fn of_archive(file: File, path: &Path) -> Result<Self, ImportError> {
        let copy = file.try_clone().at("read", path)?;
        let index = index(BufReader::new(copy), path)?;
        Ok(Files::Archive { file, index })
    }

    /// Returns whether there is a file of that name.
    pub(in crate::image) fn has(&self, name: &str) -> bool {
        self.open_file(name).is_ok()
    }

    /// Opens a file, and returns its size too.
    pub(in crate::image) fn open_file(
        &self,
        name: &str,
    ) -> Result<(FileReader<'_>, u64), ImportError> {
        let no_file = || ImportError::NoFile { name: name.to_owned() };
        match self {
            Files::Directory(directory) => {
                // A FIFO must not make us wait for who writes into it.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                let file = directory.open(name.as_ref(), flags, Mode::empty())?;
                let file = File::from(file);
                let metadata = file.metadata().at("read", &directory.path().join(name))?;
                if !metadata.is_file() {
                    return Err(no_file());
                }
                Ok((FileReader::Whole(file), metadata.len()))
            }
            Files::Archive { file, index } => {
                let mut name = normal(name).ok_or_else(no_file)?;
                for _ in 0..MAX_LINKS {
                    match index.get(&name).ok_or_else(no_file)? {
                        Place::Data { offset, size } => {
                            let part = FileReader::Part { file, offset: *offset, left: *size };
                            return Ok((part, *size));
                        }
                        Place::Link(target) => name.clone_from(target),
                    }
                }
                Err(no_file())
            }
        }
    }
}

/// A file, or the part of an archive that is one.
pub enum FileReader<'a> {
    Whole(File),
    Part { file: &'a File, offset: u64, left: u64 },
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            FileReader::Whole(file) => file.read(buffer),
            FileReader::Part { file, offset, left } => {
                let count = usize::try_from(*left).map_or(buffer.len(), |n| n.min(buffer.len()));
                let count = file.read_at(&mut buffer[..count], *offset)?;
                *offset += count as u64;
                *left -= count as u64;
                Ok(count)
            }
        }
    }
}

/// Returns the archive as it is, or what is in it if it is compressed.
fn inflated(
    mut file: File,
    path: &Path,
    scratch: &Path,
    max_bytes: u64,
) -> Result<File, ImportError> {
    let archive = |source| ImportError::Archive { path: path.to_owned(), source };
    let mut magic = [0; 4];
    let count = file.read_at(&mut magic, 0).at("read", path)?;
    if !is_compressed(&magic[..count]) {
        return Ok(file);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let inflated = openat(CWD, scratch, flags, Mode::RUSR | Mode::WUSR);
    let mut inflated = File::from(inflated.at("make a file in", scratch)?);
    let reader = decoder(&mut file).map_err(|error| {
        archive(match error {
            DecoderError::Read(error) => UnpackError::Read(error),
            DecoderError::Unsupported(name) => UnpackError::Compression { name },
        })
    })?;
    let copied = io::copy(&mut reader.take(max_bytes + 1), &mut inflated);
    if copied.map_err(|error| archive(UnpackError::Inflate(error)))? > max_bytes {
        return Err(ImportError::TooLarge { name: path.display().to_string() });
    }
    inflated.seek(SeekFrom::Start(0)).at("read", path)?;
    Ok(inflated)
}

fn is_compressed(magic: &[u8]) -> bool {
    [&b"\x1f\x8b"[..], b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zX"]
        .iter()
        .any(|start| magic.starts_with(start))
}

/// Finds the files of an archive.
fn index(reader: BufReader<File>, path: &Path) -> Result<HashMap<String, Place>, ImportError> {
    let failed = |source| ImportError::Archive { path: path.to_owned(), source };
    let mut archive = Archive::new(reader);
    let mut entry = Entry::default();
    let mut index = HashMap::new();
    while archive.next(&mut entry).map_err(failed)? {
        if entry.path.len() > MAX_NAME_BYTES || entry.target.len() > MAX_NAME_BYTES {
            continue;
        }
        let Some(name) = std::str::from_utf8(&entry.path).ok().and_then(normal) else { continue };
        let place = match entry.kind {
            Kind::File => Place::Data { offset: entry.offset, size: entry.size },
            Kind::Symlink | Kind::Hardlink => {
                let Ok(target) = str::from_utf8(&entry.target) else { continue };
                // A symbolic link is relative to where it is, a hard link to the archive.
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                let target = match entry.kind {
                    Kind::Symlink => normal(&format!("{parent}/{target}")),
                    _ => normal(target),
                };
                let Some(target) = target else { continue };
                Place::Link(target)
            }
            _ => continue,
        };
        index.insert(name, place);
        if index.len() > MAX_ENTRIES {
            return Err(ImportError::Entries { path: path.to_owned() });
        }
    }
    Ok(index)
}

/// Returns a name without `.`, `..` and needless slashes, if it stays in the archive.
fn normal(name: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_is_no_archive_and_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let opened = Files::open(&path, dir.path(), 1 << 20);
        assert!(matches!(opened, Err(ImportError::Format { .. })));
    }

    #[test]
    fn names_stay_in_the_archive() {
        assert_eq!(normal("./a//b/../c").as_deref(), Some("a/c"));
        assert_eq!(normal("a/../../b"), None);
    }
}
