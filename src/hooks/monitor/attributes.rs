//! Attributes of paths that determine who can change a hook, and which program it runs.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{WriteAccess, writers};
use rustix::fs::{FileType, OFlags, readlinkat};

use super::{ChangeKind, FileChange};
use crate::hooks::trust;

/// The attributes of a file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAttributes {
    uid: u32,
    /// File type and permissions.
    mode: u32,
    /// Users and groups with write access besides the owner; `None` if unknown, and for a symlink.
    writers: Option<Vec<WriteAccess>>,
    /// Target of a symlink; `None` for other files.
    target: Option<CString>,
    /// Version of the content; set only for programs that are regular files.
    version: Option<FileVersion>,
}

/// Values that differ after a file was replaced or written. They include the ctime and not the
/// mtime, because programs can set the mtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    /// The ctime, in seconds and nanoseconds.
    changed: (i64, u64),
}

impl PathAttributes {
    /// Returns the attributes of a path without following a link; `None` if they cannot be read.
    pub fn of(path: &Path) -> Option<Self> {
        // No version: hook files are compared by their definition, and the ctime of a directory
        // changes with its entries.
        Some(PathAttributes { version: None, ..PathAttributes::of_program(path)? })
    }

    /// Returns the attributes of a program, including a version that differs after the program was
    /// written; `None` if they cannot be read.
    pub fn of_program(path: &Path) -> Option<Self> {
        let (file, stat) = trust::open(path, OFlags::NOFOLLOW).ok()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_link = kind.is_symlink();
        let target = || readlinkat(&file, c"", Vec::new()).ok();
        let version = FileVersion {
            device: stat.st_dev,
            inode: stat.st_ino,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        };
        Some(PathAttributes {
            uid: stat.st_uid,
            mode: stat.st_mode,
            writers: if is_link { None } else { writers(file.as_fd(), &stat).ok() },
            target: is_link.then(target).flatten(),
            version: kind.is_file().then_some(version),
        })
    }
}

/// Returns a change of kind [`ChangeKind::Altered`] for each known path whose attributes differ.
pub fn altered<'a>(
    old: &HashMap<PathBuf, PathAttributes>,
    new: impl IntoIterator<Item = (&'a PathBuf, &'a PathAttributes)>,
) -> impl Iterator<Item = FileChange> {
    let differs = |(path, now): &(&PathBuf, &PathAttributes)| {
        old.get(*path).is_some_and(|before| before != *now)
    };
    let change =
        |(path, _): (&PathBuf, _)| FileChange { path: path.clone(), kind: ChangeKind::Altered };
    new.into_iter().filter(differs).map(change)
}
