//! Reading all files of a directory.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::io::{Errno, retry_on_intr};

use super::read::{open_at, read_into};
use super::{PathContext as _, PathError, ReadError};

/// An open directory. Its files are opened relative to its descriptor and read into one buffer: with many small
/// files, path lookups would take longer than reading.
#[derive(Debug)]
pub struct DirectoryReader {
    file: OwnedFd,
    buffer: Vec<u8>,
}

/// Buffer size of getdents64(2), as in the C library.
const LIST_BYTES: usize = 32 << 10;

impl DirectoryReader {
    /// Opens a directory; symbolic links are followed.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file =
            retry_on_intr(|| openat(CWD, path, flags, Mode::empty())).with_path("list", path)?;
        Ok(DirectoryReader { file, buffer: Vec::new() })
    }

    /// Returns the names of the directory's entries in byte order, without duplicates.
    pub fn names(&self) -> Result<Vec<OsString>, Errno> {
        let mut buffer = Vec::with_capacity(LIST_BYTES);
        let mut entries = RawDir::new(&self.file, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // The directory has been removed.
                Err(Errno::NOENT) => break,
                entry => entry?,
            };
            let name = entry.file_name();
            if name != c"." && name != c".." {
                names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
            }
        }
        names.sort_unstable();
        // A file that is renamed meanwhile may be listed twice.
        names.dedup();
        Ok(names)
    }

    /// Returns the content of a file as [`read_bounded`](super::read_bounded) does; `path` is its path in
    /// errors.
    pub fn read(
        &mut self,
        name: &OsStr,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<&[u8], ReadError> {
        let file = open_at(self.file.as_fd(), name, path)?;
        read_into(&file, path, limit_bytes, &mut self.buffer)?;
        Ok(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_are_listed_in_order_and_read_by_name() {
        let root = tempfile::tempdir().unwrap();
        let count = 2000;
        for number in 0..count {
            fs::write(root.path().join(format!("{number:04}")), number.to_string()).unwrap();
        }
        let mut directory = DirectoryReader::open(root.path()).unwrap();
        let names = directory.names().unwrap();
        assert!(names.is_sorted());
        assert_eq!(names.len(), count);
        for (number, name) in names.iter().enumerate() {
            let content = directory.read(name, Path::new("x"), 4).unwrap();
            assert_eq!(content, number.to_string().as_bytes());
        }
        // The content of a longer file is no longer in the buffer.
        fs::write(root.path().join("empty"), "").unwrap();
        assert_eq!(directory.read(OsStr::new("empty"), Path::new("x"), 4).unwrap(), b"");
    }

    #[test]
    fn errors_name_the_whole_path() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("missing");
        let error = DirectoryReader::open(&missing).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot list {}", missing.display()));

        let mut directory = DirectoryReader::open(root.path()).unwrap();
        let error = directory.read(OsStr::new("missing"), &missing, 1).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot open {}", missing.display()));
        fs::create_dir(&missing).unwrap();
        let error = directory.read(OsStr::new("missing"), &missing, 1).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", missing.display()));
    }

    #[test]
    fn removed_directory_is_empty() {
        let root = tempfile::tempdir().unwrap();
        let directory = DirectoryReader::open(root.path()).unwrap();
        drop(root);
        assert_eq!(directory.names().unwrap(), Vec::<OsString>::new());
    }
}
