//! The files of an image: in a directory or in an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::fs::{PathContext as _, READ_FLAGS};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::error::ImportError;
use crate::UnpackError;
use crate::layer::{TarArchive, TarEntry, TarEntryKind, decoder};

/// Maximum number of files and links in an archive; images have fewer.
pub(super) const MAX_ENTRIES: usize = 100_000;

/// Maximum number of links to follow from one name to its file.
const MAX_LINKS: usize = 8;

/// Longest file name or link target; entries with longer ones are ignored, because no file of an
/// image needs them.
const MAX_NAME_BYTES: usize = 512;

/// The files of an image.
#[derive(Debug)]
pub enum ImageFiles {
    Directory(ConfinedRoot),
    Archive { file: File, index: HashMap<String, FileLocation> },
}

/// Location of a file in an archive.
#[derive(Debug)]
pub enum FileLocation {
    Data {
        offset: u64,
        size: u64,
    },
    /// Old versions of Docker save a layer shared by two images once, and link to it.
    Link(String),
}

impl ImageFiles {
    /// Opens a directory or an archive. A compressed archive is decompressed into an unnamed file
    /// in the directory `scratch`, up to `max_bytes`.
    pub(crate) fn open(path: &Path, scratch: &Path, max_bytes: u64) -> Result<Self, ImportError> {
        let file =
            File::from(openat(CWD, path, READ_FLAGS, Mode::empty()).with_path("open", path)?);
        let metadata = file.metadata().with_path("read", path)?;
        if metadata.is_dir() {
            return Ok(ImageFiles::Directory(ConfinedRoot::from_fd(file.into(), path)));
        }
        if !metadata.is_file() {
            return Err(ImportError::Format { path: path.to_owned() });
        }
        let file = inflate_archive(file, path, scratch, max_bytes)?;
        Self::of_archive(file, path)
    }

    /// Indexes an open, uncompressed archive; the path is for error messages.
    pub(crate) fn of_archive(file: File, path: &Path) -> Result<Self, ImportError> {
        let copy = file.try_clone().with_path("read", path)?;
        let index = index(BufReader::new(copy), path)?;
        Ok(ImageFiles::Archive { file, index })
    }

    /// Returns whether there is a file of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.open_file(name).is_ok()
    }

    /// Opens a file, and returns it with its size.
    pub(crate) fn open_file(&self, name: &str) -> Result<(FileReader<'_>, u64), ImportError> {
        let no_file = || ImportError::NoFile { name: name.to_owned() };
        match self {
            ImageFiles::Directory(directory) => {
                let file = directory.open(name.as_ref(), READ_FLAGS, Mode::empty())?;
                let file = File::from(file);
                let metadata = file.metadata().with_path("read", &directory.path().join(name))?;
                if !metadata.is_file() {
                    return Err(no_file());
                }
                Ok((FileReader::Whole(file), metadata.len()))
            }
            ImageFiles::Archive { file, index } => {
                let mut name = normalize_name(name).ok_or_else(no_file)?;
                for _ in 0..MAX_LINKS {
                    match index.get(&name).ok_or_else(no_file)? {
                        FileLocation::Data { offset, size } => {
                            let part = FileReader::Part { file, offset: *offset, left: *size };
                            return Ok((part, *size));
                        }
                        FileLocation::Link(target) => name.clone_from(target),
                    }
                }
                Err(no_file())
            }
        }
    }
}

/// Reader of a file, or of a file in an archive.
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

/// Returns the archive, decompressed if necessary.
fn inflate_archive(
    mut file: File,
    path: &Path,
    scratch: &Path,
    max_bytes: u64,
) -> Result<File, ImportError> {
    let archive = |source| ImportError::Archive { path: path.to_owned(), source };
    let mut magic = [0; 4];
    let count = file.read_at(&mut magic, 0).with_path("read", path)?;
    if !is_compressed(&magic[..count]) {
        return Ok(file);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let inflated = openat(CWD, scratch, flags, Mode::RUSR | Mode::WUSR);
    let mut inflated = File::from(inflated.with_path("make a file in", scratch)?);
    let reader = decoder(&mut file).map_err(archive)?;
    let copied = io::copy(&mut reader.take(max_bytes + 1), &mut inflated);
    if copied.map_err(|error| archive(UnpackError::Inflate(error)))? > max_bytes {
        return Err(ImportError::TooLarge {
            name: path.display().to_string(),
            limit_bytes: max_bytes,
        });
    }
    inflated.seek(SeekFrom::Start(0)).with_path("read", path)?;
    Ok(inflated)
}

fn is_compressed(magic: &[u8]) -> bool {
    [&b"\x1f\x8b"[..], b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zX"]
        .iter()
        .any(|start| magic.starts_with(start))
}

/// Indexes the files of an archive.
fn index(
    reader: BufReader<File>,
    path: &Path,
) -> Result<HashMap<String, FileLocation>, ImportError> {
    let failed = |source| ImportError::Archive { path: path.to_owned(), source };
    let mut archive = TarArchive::new(reader);
    let mut entry = TarEntry::default();
    let mut index = HashMap::new();
    while archive.next(&mut entry).map_err(failed)? {
        if entry.path.len() > MAX_NAME_BYTES || entry.target.len() > MAX_NAME_BYTES {
            continue;
        }
        let Some(name) = std::str::from_utf8(&entry.path).ok().and_then(normalize_name) else {
            continue;
        };
        let place = match entry.kind {
            TarEntryKind::File => FileLocation::Data { offset: entry.offset, size: entry.size },
            TarEntryKind::Symlink | TarEntryKind::Hardlink => {
                let Ok(target) = str::from_utf8(&entry.target) else { continue };
                // A symbolic link is relative to its directory, a hard link to the archive's root.
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                let target = match entry.kind {
                    TarEntryKind::Symlink => normalize_name(&format!("{parent}/{target}")),
                    _ => normalize_name(target),
                };
                let Some(target) = target else { continue };
                FileLocation::Link(target)
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

/// Returns a name without `.`, `..` and needless slashes, or `None` if it leaves the archive.
fn normalize_name(name: &str) -> Option<String> {
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
    fn fifo_is_not_read_as_an_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let opened = ImageFiles::open(&path, dir.path(), 1 << 20);
        assert!(matches!(opened, Err(ImportError::Format { .. })));
    }

    #[test]
    fn entry_names_stay_within_the_archive() {
        assert_eq!(normalize_name("./a//b/../c").as_deref(), Some("a/c"));
        assert_eq!(normalize_name("a/../../b"), None);
    }
}
