//! Attributes of paths that decide who can change a hook, and what it runs.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{FileWriter, writers};
use rustix::fs::{FileType, OFlags};

use super::{ChangeKind, FileChange};
use crate::hooks::trust;

/// The attributes of a file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAttributes {
    uid: u32,
    /// File type and permissions.
    mode: u32,
    /// `None` if they cannot be read.
    writers: Option<Vec<FileWriter>>,
    /// Where a link leads.
    target: Option<PathBuf>,
    /// Of a program only.
    version: Option<FileVersion>,
}

/// Values that differ after a file was replaced or written. Programs cannot set the time of the last change, unlike
/// the time of the last write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    /// Time of the last change, in seconds and nanoseconds.
    changed: (i64, u64),
}

impl PathAttributes {
    /// Returns the attributes of a path without following a link; `None` if they cannot be read.
    pub fn of(path: &Path) -> Option<Self> {
        let (file, stat) = trust::open(path, OFlags::NOFOLLOW).ok()?;
        let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
        Some(PathAttributes {
            uid: stat.st_uid,
            mode: stat.st_mode,
            writers: if is_link { None } else { writers(file.as_fd(), &stat).ok() },
            target: if is_link { fs::read_link(path).ok() } else { None },
            version: None,
        })
    }

    /// Returns the attributes of a program, which differ also if it was written.
    pub fn of_program(path: &Path) -> Option<Self> {
        let (_, stat) = trust::open(path, OFlags::NOFOLLOW).ok()?;
        let version = FileVersion {
            device: stat.st_dev,
            inode: stat.st_ino,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        };
        // A directory changes with its entries.
        let version = FileType::from_raw_mode(stat.st_mode).is_file().then_some(version);
        Some(PathAttributes { version, ..PathAttributes::of(path)? })
    }
}

/// Returns changes of the paths whose attributes differ.
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
