//! What is known of a file, with its true owner.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::fs::{Stat, fstat};

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
