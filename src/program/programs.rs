//! Programs of the host: this one, and those of the system.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::runtime::{self, DEFAULT_PATH, FindError};
use crate::sys::fs::{PathContext as _, PathError};

/// Returns the file of this program.
pub fn this_program() -> Result<PathBuf, PathError> {
    env::current_exe().at("look up", Path::new("/proc/self/exe"))
}

/// Finds a program where the system has them: jobs may have put programs into directories of `PATH`.
pub fn find(name: &str) -> Result<PathBuf, FindError> {
    runtime::find(&[OsStr::new(name)], Some(DEFAULT_PATH.as_ref()), None)
}
