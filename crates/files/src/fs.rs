//! Files: errors with paths, bounded reading, atomic replacement, and checks of write permissions.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat};

pub mod acl;
mod directory;
mod own_links;
mod read;
mod replace;
mod system_root;
mod writers;

pub use directory::DirectoryReader;
pub use own_links::{make_directories, make_directory, open_directory};
pub use read::{FileKind, READ_FLAGS, ReadError, read_bounded, read_if_there};
pub use replace::{
    Durability, ExpectedFile, FileAt, FileId, MAX_SYMLINKS, ReplaceError, ReplaceOptions,
    SymlinkPolicy,
};
pub use system_root::{DirEntry, SystemRoot};
pub use writers::{AccessSubject, PermittedBy, WriteAccess, writers};

/// An I/O error with the failed action and its path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct PathError {
    /// The failed action, as a verb: `read`, `open`, `list`.
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl PathError {
    /// Returns the error that says `cannot ACTION PATH`.
    pub fn new(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        PathError { action, path: path.to_owned(), source: source.into() }
    }
}

/// Adds an action and a path to an I/O error.
pub trait PathContext<T> {
    /// Turns the error into a [`PathError`] that says `cannot ACTION PATH`.
    fn with_path(self, action: &'static str, path: &Path) -> Result<T, PathError>;
}

impl<T, E: Into<io::Error>> PathContext<T> for Result<T, E> {
    fn with_path(self, action: &'static str, path: &Path) -> Result<T, PathError> {
        self.map_err(|source| PathError::new(action, path, source))
    }
}

/// Creates a directory and its missing parents, with mode 0700.
pub fn make_private(path: &Path) -> Result<(), PathError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_path("create the directory", path)
}

/// Creates a directory with this mode, less the umask, unless its path exists. Returns whether it was missing.
pub fn create_if_missing(path: &Path, mode: u32) -> Result<bool, PathError> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        created => created.with_path("create the directory", path).map(|()| true),
    }
}

/// Replaces a file, or creates it, with this mode and without waiting for the disk: for files that a reboot removes, or
/// that may get lost with it. A symbolic link in its place is an error.
pub fn replace_unsynced(path: &Path, content: &[u8], mode: u32) -> Result<(), ReplaceError> {
    let options = ReplaceOptions {
        mode: Some(mode),
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    FileAt::open(path, SymlinkPolicy::Refuse)?.replace(content, &options)
}

/// Returns the entries of a directory, in no order; none if it does not exist.
pub fn entries_in(directory: &Path) -> Result<Vec<fs::DirEntry>, PathError> {
    match fs::read_dir(directory).and_then(|entries| entries.collect::<io::Result<Vec<_>>>()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.with_path("list", directory),
    }
}

/// Returns the names in a directory, sorted, without those that are not UTF-8; none if it does not exist.
pub fn names_in(directory: &Path) -> Result<Vec<String>, PathError> {
    let entries = entries_in(directory)?.into_iter();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Removes a file, if it exists.
pub fn remove_if_there(path: &Path) -> Result<(), PathError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_path("remove", path),
    }
}

/// Creates a file for reading and writing, with mode 0600. Fails if something exists at the path.
pub fn create_private(path: &Path) -> Result<File, PathError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).with_path("create", path)
}

/// Opens a file for writing, creates it with this mode if it is missing, and truncates it. Fails for a FIFO
/// that has no reader, instead of waiting for one.
pub fn create_without_waiting(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(mode);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Returns an unpredictable random number, for unique names and tokens.
pub fn random_u64() -> u64 {
    // The standard library seeds its hash maps from the kernel's random numbers, and each
    // `RandomState` differently.
    RandomState::new().hash_one(std::process::id())
}

/// Function that replaces the overflow uid and gid in the status of a file by its true owner and group.
pub type OwnerCorrection = fn(BorrowedFd<'_>, &mut Stat) -> io::Result<()>;

static CORRECT: OnceLock<OwnerCorrection> = OnceLock::new();

/// Sets the function by which [`status`] corrects unmapped owners of files. Only the first call counts.
pub fn set_owner_correction(correct: OwnerCorrection) {
    // A process enters its user namespace only once.
    let _ = CORRECT.set(correct);
}

/// Returns the status of a file (`fstat`). If the user namespace of this process does not map the owner or group, the
/// host's id is returned in its place: 0 is root of the host then.
///
/// Mapped owners and groups stay as they are.
///
/// # Errors
///
/// Fails if the status or the true owner cannot be read.
pub fn status(file: BorrowedFd<'_>) -> io::Result<Stat> {
    let mut stat = fstat(file)?;
    if let Some(correct) = CORRECT.get() {
        correct(file, &mut stat)?;
    }
    Ok(stat)
}
