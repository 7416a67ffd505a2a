//! Paths of this program and of the host's programs.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use oci_hooks_files::find::{self, DEFAULT_PATH, FindError};
use oci_hooks_files::fs::{PathContext as _, PathError};

/// Returns the path of this program.
pub fn program_path() -> Result<PathBuf, PathError> {
    env::current_exe().with_path("look up", Path::new("/proc/self/exe"))
}

/// Finds a program in the system's directories; `PATH` may contain directories that jobs can write.
pub fn find(name: &str) -> Result<PathBuf, FindError> {
    find::find(&[OsStr::new(name)], Some(DEFAULT_PATH.as_ref()), None)
}
