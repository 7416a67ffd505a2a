//! Reading files whose path somebody else chose.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, statat};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

use super::{PathContext as _, PathError};

/// How a file that somebody else named is opened for reading: without waiting for the writer of a
/// FIFO, and without acquiring a terminal.
pub const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system says so; of a directory it says [`ErrorKind::IsADirectory`].
    #[error(transparent)]
    Path(#[from] PathError),
    /// It holds more than the caller takes.
    #[error("{} has {size_bytes} bytes, more than {limit_bytes}", path.display())]
    TooLarge {
        path: PathBuf,
        /// Its size, or of one that grows, how much was seen of it.
        size_bytes: u64,
        /// How much the caller takes.
        limit_bytes: u64,
    },
    /// It is something else than a file.
    #[error("{} is a {kind}, not a file", path.display())]
    NotAFile { path: PathBuf, kind: FileKind },
}

impl ReadError {
    /// Returns whether what is there is to blame, rather than the moment or the caller: nobody will be able
    /// to read it another time either.
    pub fn is_of_the_file(&self) -> bool {
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

/// What a path names if it is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    /// A symbolic link, where none is followed.
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
    /// Something this program does not know.
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

/// Returns what a file is, or none if it is a regular one.
pub fn irregular(stat: &Stat) -> Option<FileKind> {
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
/// Symbolic links are followed. `/dev/null` is empty; a FIFO, a socket or another device is an
/// error and never waited for.
pub fn read_bounded(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, ReadError> {
    let file = open_at(CWD, path, path)?;
    read_opened(&file, path, limit_bytes).map(|(bytes, _)| bytes)
}

/// Opens a file for reading; `path` is what errors call it.
pub fn open_at<N: Arg + Copy>(
    directory: BorrowedFd<'_>,
    name: N,
    path: &Path,
) -> Result<OwnedFd, ReadError> {
    match retry_on_intr(|| openat(directory, name, READ_FLAGS, Mode::empty())) {
        Ok(file) => Ok(file),
        // A socket cannot be opened at all, and neither can a device without driver.
        Err(Errno::NXIO) => {
            let stat = statat(directory, name, AtFlags::empty());
            let kind = stat.ok().and_then(|stat| irregular(&stat)).unwrap_or(FileKind::Unknown);
            Err(ReadError::NotAFile { path: path.to_owned(), kind })
        }
        Err(error) => Err(PathError::new("open", path, error).into()),
    }
}

/// Reads a file as [`read_bounded`] does, if there is one.
///
/// To look first and read then would fail on a file that somebody removes meanwhile.
pub fn read_if_there(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, ReadError> {
    match read_bounded(path, limit_bytes) {
        Err(ReadError::Path(error)) if error.source.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the content of an opened file, and its status from before it was read.
pub fn read_opened(
    file: &OwnedFd,
    path: &Path,
    limit_bytes: u64,
) -> Result<(Vec<u8>, Stat), ReadError> {
    let mut bytes = Vec::new();
    let stat = read_into(file, path, limit_bytes, &mut bytes)?;
    Ok((bytes, stat))
}

/// Reads an opened file in place of what a buffer holds, and returns its status from before.
pub fn read_into(
    file: &OwnedFd,
    path: &Path,
    limit_bytes: u64,
    bytes: &mut Vec<u8>,
) -> Result<Stat, ReadError> {
    bytes.clear();
    let stat = fstat(file).at("read the status of", path)?;
    match irregular(&stat) {
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
    // A byte more than expected: a file that has grown does not look complete.
    bytes.reserve(size + 1);
    loop {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(READ_MORE_BYTES);
        }
        let spare = || rustix::io::read(file, rustix::buffer::spare_capacity(bytes));
        let count = retry_on_intr(spare).at("read", path)?;
        // Files in /proc have a size of zero whatever is in them: only there does the end have to
        // be read too.
        if count == 0 || (bytes.len() == size && size > 0) {
            return Ok(stat);
        }
        if bytes.len() as u64 > limit_bytes {
            return Err(too_large(bytes.len() as u64));
        }
    }
}

/// How much is read at once past the size a file claims to have.
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
    fn files_are_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for size in [0, 1, 4096, 1 << 20] {
            let content = vec![b'x'; size];
            fs::write(&path, &content).unwrap();
            assert!(read_bounded(&path, LIMIT_BYTES).unwrap() == content, "{size} bytes");
        }
        // It claims to be empty.
        let status = read_bounded(Path::new("/proc/self/status"), LIMIT_BYTES).unwrap();
        assert!(status.ends_with(b"\n") && status.len() > 100);
    }

    #[test]
    fn size_limit_is_inclusive_and_holds_for_files_that_claim_to_be_empty() {
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
    fn dev_null_is_empty_through_a_link_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("masked.json");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(read_bounded(&path, LIMIT_BYTES).unwrap(), b"");
    }

    #[test]
    fn what_is_no_file_is_named_and_not_waited_for() {
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
    fn directories_and_missing_files_are_the_systems_errors() {
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
