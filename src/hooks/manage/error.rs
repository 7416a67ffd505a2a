//! Errors of changing hook files.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{FileKind, PathError, ReadError, ReplaceError};

use crate::hooks::LoadProblem;

/// Reasons for a change to fail, completely or in part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManageError {
    /// A system call failed. Earlier steps are not undone.
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("invalid hook name {name:?}: {reason}")]
    Name { name: OsString, reason: &'static str },
    /// There is no directory to write to.
    #[error("no hook directory is given")]
    NoDirectory,
    /// No directory has a hook of this name.
    #[error("hook {name:?} not found")]
    NoSuchHook { name: OsString },
    /// Another file of this name exists.
    #[error("{} already exists", path.display())]
    Exists { path: PathBuf },
    /// The hook exists but is disabled, so it is not overwritten.
    #[error("{} disables the hook", path.display())]
    Disabled {
        /// The [mask](super) that hides the hook, or the file of the disabled hook.
        path: PathBuf,
    },
    /// The file name needed for the disabled hook belongs to another hook.
    #[error("{} has a disabled hook that differs from the enabled one", path.display())]
    DisabledNameTaken { path: PathBuf },
    /// The hook is in an earlier directory, which is not changed.
    #[error("{} is not in {}, the only directory that is changed", path.display(), dir.display())]
    Elsewhere { path: PathBuf, dir: PathBuf },
    /// There is no hook to remove: the file only masks a hook of an earlier directory.
    #[error("{} only masks a hook of an earlier directory", path.display())]
    OnlyMask { path: PathBuf },
    /// The hook's conditions hold for no container, or it has no stage.
    #[error("{} never applies", path.display())]
    NeverApplies { path: PathBuf },
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file cannot be replaced, or changed after it was read.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// A consumer would reject the hook.
    #[error(transparent)]
    Invalid(Box<LoadProblem>),
}

impl ManageError {
    /// Returns a stable name of the kind of error, for programs.
    pub fn class(&self) -> &'static str {
        match self {
            ManageError::Path(_) => "io",
            ManageError::Name { .. } => "bad-name",
            ManageError::NoDirectory => "no-directory",
            ManageError::NoSuchHook { .. } => "no-such-hook",
            ManageError::Exists { .. } => "exists",
            ManageError::Disabled { .. } => "disabled",
            ManageError::DisabledNameTaken { .. } => "kept",
            ManageError::Elsewhere { .. } => "elsewhere",
            ManageError::OnlyMask { .. } => "only-mask",
            ManageError::NeverApplies { .. } => "never-applies",
            ManageError::Read(ReadError::TooLarge { .. }) => "too-large",
            ManageError::Read(ReadError::NotAFile { .. })
            | ManageError::Replace(ReplaceError::NotAFile { .. }) => "not-a-file",
            ManageError::Replace(ReplaceError::Changed { .. }) => "changed",
            ManageError::Replace(ReplaceError::ForeignLink { .. }) => "foreign-link",
            ManageError::Read(_) | ManageError::Replace(_) => "io",
            ManageError::Invalid(problem) => problem.source.class(),
        }
    }

    /// Returns a hint for fixing the error.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            ManageError::Path(error)
            | ManageError::Read(ReadError::Path(error))
            | ManageError::Replace(ReplaceError::Path(error)) => match error.source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "run as root, or use --hooks-dir with a directory of your own"
                }
                io::ErrorKind::ReadOnlyFilesystem => "use --hooks-dir with a writable directory",
                _ => return None,
            },
            ManageError::NoSuchHook { .. } => "`oci-hooks list` lists all hooks",
            ManageError::Exists { .. } => {
                "remove it first, or replace it with `oci-hooks install --force`"
            }
            ManageError::Disabled { .. } => {
                "enable it first, or replace it with `oci-hooks install --force`"
            }
            ManageError::DisabledNameTaken { .. } => "delete or rename one of the two files",
            ManageError::Elsewhere { .. } => {
                "mask it with `oci-hooks disable`, or remove the package that installed it"
            }
            ManageError::OnlyMask { .. } => "`oci-hooks enable` removes the mask",
            ManageError::NeverApplies { .. } => {
                "give it a condition in `when` and a stage, or remove it with `oci-hooks remove`"
            }
            ManageError::Replace(ReplaceError::NotAFile { kind: FileKind::Symlink, .. }) => {
                "name the file it points to"
            }
            ManageError::Replace(ReplaceError::Changed { .. }) => "check the file and try again",
            ManageError::Invalid(problem) => return problem.source.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// Returns the file or directory of the error.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ManageError::Path(error)
            | ManageError::Read(ReadError::Path(error))
            | ManageError::Replace(ReplaceError::Path(error)) => Some(&error.path),
            ManageError::Read(
                ReadError::NotAFile { path, .. } | ReadError::TooLarge { path, .. },
            )
            | ManageError::Replace(
                ReplaceError::NoFileName { path }
                | ReplaceError::NotAFile { path, .. }
                | ReplaceError::ForeignLink { path, .. }
                | ReplaceError::Changed { path },
            ) => Some(path),
            ManageError::Exists { path }
            | ManageError::Disabled { path }
            | ManageError::DisabledNameTaken { path }
            | ManageError::Elsewhere { path, .. }
            | ManageError::OnlyMask { path }
            | ManageError::NeverApplies { path } => Some(path),
            ManageError::Invalid(problem) => Some(&problem.path),
            ManageError::Name { .. }
            | ManageError::NoDirectory
            | ManageError::NoSuchHook { .. } => None,
        }
    }
}
