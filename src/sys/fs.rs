//! Files: errors that carry their path, bounded reading, atomic replacement, who may change them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat};

pub(in crate::sys) mod acl;
mod directory;
mod own_links;
mod read;
mod replace;
mod system_root;
mod writers;

pub use directory::Directory;
pub use own_links::{make_directories, make_directory, open_directory};
pub use read::{FileKind, ReadError, read_bounded, read_if_there};
pub use replace::{Durability, Expected, FileAt, FileId, ReplaceError, ReplaceOptions, Symlinks};
pub use system_root::{DirEntry, SystemRoot};
pub use writers::{PermittedBy, Who, Writer, writers};

/// An I/O error with the path it happened at and what was being done there.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct PathError {
    /// What could not be done, as a verb: `read`, `open`, `list`.
    pub action: &'static str,
    /// The path it could not be done to.
    pub path: PathBuf,
    pub source: io::Error,
}

impl PathError {
    /// Returns the error that says `cannot ACTION PATH`.
    pub fn new(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        PathError { action, path: path.to_owned(), source: source.into() }
    }
}

/// Adds the path to an I/O error.
pub trait PathContext<T> {
    /// Turns the error into a [`PathError`] that says `cannot ACTION PATH`.
    fn at(self, action: &'static str, path: &Path) -> Result<T, PathError>;
}

impl<T, E: Into<io::Error>> PathContext<T> for Result<T, E> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, PathError> {
        self.map_err(|source| PathError::new(action, path, source))
    }
}

/// Makes a directory that only its owner can look into, and its parents.
pub fn make_private(path: &Path) -> Result<(), PathError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).at("make the directory", path)
}

/// Opens a file for writing, made with this mode if it is not there, and empties it. No reader of a FIFO
/// is waited for: without one it fails.
pub fn create_without_waiting(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(mode);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Returns a number for a file name that nobody else has and nobody could have guessed.
pub fn random_u64() -> u64 {
    // The standard library keys its hash maps from the kernel's random numbers, and each
    // `RandomState` differently.
    RandomState::new().hash_one(std::process::id())
}

/// Puts the true owner and group of a file in the place of numbers that stand for everybody unknown.
pub type Correct = fn(BorrowedFd<'_>, &mut Stat) -> io::Result<()>;

static CORRECT: OnceLock<Correct> = OnceLock::new();

/// Has owners be corrected from now on: in a user namespace that knows few users.
pub fn correct_owners(correct: Correct) {
    // There is one door, which is passed once.
    let _ = CORRECT.set(correct);
}

/// Returns what `fstat` says of a file, but with the owner and group that it has on the host where the user
/// namespace of this process has no number for them: 0 is root of the host then.
///
/// What is somebody's whom the namespace knows stays as it is.
///
/// # Errors
///
/// Fails if the file cannot be looked at, or if it cannot be found out whose it is.
pub fn status(file: BorrowedFd<'_>) -> io::Result<Stat> {
    let mut stat = fstat(file)?;
    if let Some(correct) = CORRECT.get() {
        correct(file, &mut stat)?;
    }
    Ok(stat)
}
