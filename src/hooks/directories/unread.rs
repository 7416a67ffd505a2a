//! Hook files that a consumer does not read.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::System;
use crate::hooks::consumer::{DEFAULT_DIR, OVERRIDE_DIR};
use crate::hooks::set::is_hook_file_name;

/// A directory with hook files that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadDir {
    pub path: PathBuf,
    /// The names of its hook files, sorted.
    pub files: Vec<OsString>,
}

/// Returns the usual directories that have hook files and are not among `dirs`.
pub fn unread(dirs: &[PathBuf], system: &System<'_>) -> Vec<UnreadDir> {
    let of_user = system.is_rootless().then(|| system.user_config()).flatten();
    let usual = [DEFAULT_DIR, OVERRIDE_DIR].map(PathBuf::from).into_iter();
    let usual = usual.chain(of_user.map(|config| config.join("oci/hooks.d")));
    let read: Vec<_> = dirs.iter().map(|dir| identity(&system.root.join(dir))).collect();
    let unread = usual.filter(|usual| {
        let found = identity(&system.root.join(usual));
        !dirs.contains(usual) && (found.is_none() || !read.contains(&found))
    });
    unread.filter_map(|path| with_files(path, system)).collect()
}

/// Returns what makes two paths name the same directory.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns a directory if there are hook files in it.
fn with_files(path: PathBuf, system: &System<'_>) -> Option<UnreadDir> {
    let entries = system.root.list(&path).ok()??;
    let files = entries.into_iter().filter(|entry| is_hook_file_name(&entry.name));
    let files: Vec<_> = files.map(|entry| entry.name).collect();
    (!files.is_empty()).then_some(UnreadDir { path, files })
}
