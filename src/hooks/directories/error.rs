//! Why it is not known which directories a consumer reads.

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::fs::{PathError, ReadError};

/// A configuration that cannot be used; the consumer does not start with it either.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoriesError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    List(#[from] PathError),
    /// Lines and columns count from one.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Parse { path: PathBuf, line: usize, column: usize, message: String },
    /// A variable names a file that is not there.
    #[error("{variable} names {}, which does not exist", path.display())]
    Missing { variable: &'static str, path: PathBuf },
    #[error("{} has directories nested more than {limit} deep", path.display())]
    TooDeep { path: PathBuf, limit: usize },
}

impl DirectoriesError {
    /// Returns the file or directory it is about.
    pub fn path(&self) -> Option<&Path> {
        Some(match self {
            DirectoriesError::Read(ReadError::Path(error)) | DirectoriesError::List(error) => {
                &error.path
            }
            DirectoriesError::Read(
                ReadError::TooLarge { path, .. } | ReadError::NotAFile { path, .. },
            )
            | DirectoriesError::Parse { path, .. }
            | DirectoriesError::Missing { path, .. }
            | DirectoriesError::TooDeep { path, .. } => path,
        })
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        let is_denied = |error: &PathError| error.source.kind() == io::ErrorKind::PermissionDenied;
        match self {
            DirectoriesError::Read(ReadError::Path(error)) | DirectoriesError::List(error)
                if is_denied(error) =>
            {
                "run as root, or name the hook directories with --hooks-dir"
            }
            DirectoriesError::Missing { .. } => "unset the variable, or name an existing file",
            _ => {
                "fix the file: the consumer does not start with it; or name the hook directories with --hooks-dir"
            }
        }
    }
}
