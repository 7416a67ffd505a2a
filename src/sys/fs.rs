//! Files: errors that carry their path.

use std::io;
use std::path::{Path, PathBuf};

/// An I/O error with the path it happened at and what was being done there.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct PathError {
    /// What could not be done, as a verb: `read`, `open`, `list`.
    pub action: &'static str,
    /// The path it could not be done to.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Adds the path to an I/O error.
pub trait PathContext<T> {
    /// Turns the error into a [`PathError`] that says `cannot ACTION PATH`.
    fn at(self, action: &'static str, path: &Path) -> Result<T, PathError>;
}

impl<T> PathContext<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, PathError> {
        self.map_err(|source| PathError { action, path: path.to_owned(), source })
    }
}
