//! Where the log goes.

use std::env;
use std::fs::File;
use std::path::Path;

use oci_hooks::program::trace::{self, LevelFilter};
use oci_hooks::sys::fs::{PathContext as _, PathError};
use rustix::fs::{Mode, OFlags};

/// Starts the log. `RUST_LOG` counts if no level is given.
pub fn start(level: Option<LevelFilter>, file: Option<&Path>) -> Result<(), PathError> {
    let is_set = env::var_os("RUST_LOG").is_some_and(|text| !text.is_empty());
    let level = level.or((!is_set).then_some(LevelFilter::INFO));
    match file {
        Some(path) => trace::to_file(level, open(path)?),
        None => trace::to_stderr(level),
    }
    Ok(())
}

/// Opens a file to append to, for root alone if it is new, and no symbolic link.
fn open(path: &Path) -> Result<File, PathError> {
    let flags = OFlags::APPEND | OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW;
    // A FIFO must not hold anybody up.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o640)).at("open", path)?;
    Ok(File::from(file))
}
