//! Reading files by untrusted paths.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, statat};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

use super::{PathContext as _, PathError};

/// Flags to open a file by an untrusted path for reading: without waiting for the writer of a
/// FIFO, and without acquiring a controlling terminal.
pub const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Errors of reading a file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A system call failed. A directory is reported as [`ErrorKind::IsADirectory`].
    #[error(transparent)]
    Path(#[from] PathError),
    /// The file is larger than the limit.
    #[error("{} has {size_bytes} bytes, more than {limit_bytes}", path.display())]
    TooLarge {
        path: PathBuf,
        /// Size of the file, or the number of bytes read if the file grows.
        size_bytes: u64,
        limit_bytes: u64,
    },
    /// The path is no regular file.
    #[error("{} is a {kind}, not a file", path.display())]
    NotAFile { path: PathBuf, kind: FileKind },
}

impl ReadError {
    /// Returns whether the file itself is the cause, so that a retry, even by another user, fails
    /// too.
    pub fn is_file_defect(&self) -> bool {
        let broken =
            [Errno::ISDIR, Errno::NOTDIR, Errno::LOOP, Errno::IO, Errno::BADMSG, Errno::UCLEAN];
        match self {
            ReadError::TooLarge { .. } | ReadError::NotAFile { .. } => true,
            ReadError::Path(error) => {
                broken.iter().any(|errno| error.source.raw_os_error() == Some(errno.raw_os_error()))
            }
        }
    }
}

/// Type of a file that is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    /// A symbolic link that is not followed.
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
    /// A file type that this program does not know.
    Unknown,
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FileKind::Directory => "directory",
            FileKind::Symlink => "symbolic link",
            FileKind::Fifo => "FIFO",
            FileKind::Socket => "socket",
            FileKind::CharacterDevice => "character device",
            FileKind::BlockDevice => "block device",
            FileKind::Unknown => "file of an unknown kind",
        })
    }
}

/// Returns the type of a file, or `None` for a regular file.
pub fn irregular_kind(stat: &Stat) -> Option<FileKind> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some(FileKind::Directory),
        FileType::Symlink => Some(FileKind::Symlink),
        FileType::Fifo => Some(FileKind::Fifo),
        FileType::Socket => Some(FileKind::Socket),
        FileType::CharacterDevice => Some(FileKind::CharacterDevice),
        FileType::BlockDevice => Some(FileKind::BlockDevice),
        FileType::Unknown => Some(FileKind::Unknown),
    }
}

/// Returns the content of a file of at most `limit_bytes` bytes.
///
/// Symbolic links are followed. `/dev/null` reads as empty; a FIFO, a socket or another device is an
/// error, and never blocks.
pub fn read_bounded(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, ReadError> {
    let file = open_at(CWD, path, path)?;
    read_opened(&file, path, limit_bytes).map(|(bytes, _)| bytes)
}

/// Opens a file for reading; `path` is its path in errors.
pub fn open_at<N: Arg + Copy>(
    directory: BorrowedFd<'_>,
    name: N,
    path: &Path,
) -> Result<OwnedFd, ReadError> {
    match retry_on_intr(|| openat(directory, name, READ_FLAGS, Mode::empty())) {
        Ok(file) => Ok(file),
        // Opening fails for a socket, and for a device without a driver.
        Err(Errno::NXIO) => {
            let stat = statat(directory, name, AtFlags::empty());
            let kind =
                stat.ok().and_then(|stat| irregular_kind(&stat)).unwrap_or(FileKind::Unknown);
            Err(ReadError::NotAFile { path: path.to_owned(), kind })
        }
        Err(error) => Err(PathError::new("open", path, error).into()),
    }
}

/// Reads a file as [`read_bounded`] does; `None` if it does not exist.
///
/// A check before the read would fail for a file that is removed in between.
pub fn read_if_there(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, ReadError> {
    match read_bounded(path, limit_bytes) {
        Err(ReadError::Path(error)) if error.source.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the content of an open file, and its status before the read.
pub fn read_opened(
    file: &OwnedFd,
    path: &Path,
    limit_bytes: u64,
) -> Result<(Vec<u8>, Stat), ReadError> {
    let mut bytes = Vec::new();
    let stat = read_into(file, path, limit_bytes, &mut bytes)?;
    Ok((bytes, stat))
}

/// Replaces the content of a buffer by that of an open file, and returns the file's status before the read.
pub fn read_into(
    file: &OwnedFd,
    path: &Path,
    limit_bytes: u64,
    bytes: &mut Vec<u8>,
) -> Result<Stat, ReadError> {
    bytes.clear();
    let stat = fstat(file).with_path("read the status of", path)?;
    match irregular_kind(&stat) {
        None => {}
        Some(FileKind::CharacterDevice) if is_dev_null(&stat) => return Ok(stat),
        Some(FileKind::Directory) => {
            return Err(PathError::new("read", path, Errno::ISDIR).into());
        }
        Some(kind) => return Err(ReadError::NotAFile { path: path.to_owned(), kind }),
    }

    let too_large =
        |size_bytes| ReadError::TooLarge { path: path.to_owned(), size_bytes, limit_bytes };
    let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if size_bytes > limit_bytes {
        return Err(too_large(size_bytes));
    }
    let size = usize::try_from(size_bytes).map_err(|_| too_large(size_bytes))?;
    // One byte more than expected, to notice that the file has grown.
    bytes.reserve(size + 1);
    loop {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(READ_MORE_BYTES);
        }
        let spare = || rustix::io::read(file, rustix::buffer::spare_capacity(bytes));
        let count = retry_on_intr(spare).with_path("read", path)?;
        // Files in /proc have a size of zero regardless of their content: only they have to be read until EOF.
        if count == 0 || (bytes.len() == size && size > 0) {
            return Ok(stat);
        }
        if bytes.len() as u64 > limit_bytes {
            return Err(too_large(bytes.len() as u64));
        }
    }
}

/// Size of each read beyond the size that a file claims to have.
const READ_MORE_BYTES: usize = 8 << 10;

fn is_dev_null(stat: &Stat) -> bool {
    (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    const LIMIT_BYTES: u64 = 1 << 20;

    #[test]
    fn files_are_read_completely() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for size in [0, 1, 4096, 1 << 20] {
            let content = vec![b'x'; size];
            fs::write(&path, &content).unwrap();
            assert!(read_bounded(&path, LIMIT_BYTES).unwrap() == content, "{size} bytes");
        }
        // The size of this file is reported as zero.
        let status = read_bounded(Path::new("/proc/self/status"), LIMIT_BYTES).unwrap();
        assert!(status.ends_with(b"\n") && status.len() > 100);
    }

    #[test]
    fn size_limit_is_inclusive_and_applies_to_proc_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
        let error = read_bounded(&path, 4).unwrap_err();
        assert!(matches!(error, ReadError::TooLarge { size_bytes: 5, limit_bytes: 4, .. }));
        assert_eq!(error.to_string(), format!("{} has 5 bytes, more than 4", path.display()));

        let sparse = fs::File::create(&path).unwrap();
        sparse.set_len(1 << 40).unwrap();
        assert!(matches!(read_bounded(&path, LIMIT_BYTES), Err(ReadError::TooLarge { .. })));

        let status = read_bounded(Path::new("/proc/self/status"), 100);
        assert!(matches!(status, Err(ReadError::TooLarge { .. })));
    }

    #[test]
    fn link_to_dev_null_reads_as_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("masked.json");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(read_bounded(&path, LIMIT_BYTES).unwrap(), b"");
    }

    #[test]
    fn special_files_are_named_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        let socket = directory.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, expected) in [
            (fifo.as_path(), FileKind::Fifo),
            (socket.as_path(), FileKind::Socket),
            (Path::new("/dev/zero"), FileKind::CharacterDevice),
        ] {
            match read_bounded(path, LIMIT_BYTES) {
                Err(ReadError::NotAFile { kind, .. }) => assert_eq!(kind, expected),
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }

    #[test]
    fn directories_and_missing_files_give_the_systems_error() {
        let directory = tempfile::tempdir().unwrap();
        let kind = |path: &Path| match read_bounded(path, LIMIT_BYTES) {
            Err(ReadError::Path(error)) => error.source.kind(),
            other => panic!("{other:?}"),
        };
        assert_eq!(kind(directory.path()), ErrorKind::IsADirectory);
        assert_eq!(kind(&directory.path().join("none")), ErrorKind::NotFound);
        assert_eq!(kind(Path::new("/etc/passwd/x")), ErrorKind::NotADirectory);
    }
}
