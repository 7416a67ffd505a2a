//! Destination of the log.

use std::env;
use std::fs::File;
use std::path::Path;

use oci_hooks_cli::trace::{self, LevelFilter};
use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::{Mode, OFlags};

/// Starts logging. Without a level, `RUST_LOG` applies.
pub fn start(level: Option<LevelFilter>, file: Option<&Path>) -> Result<(), PathError> {
    let is_set = env::var_os("RUST_LOG").is_some_and(|text| !text.is_empty());
    let level = level.or((!is_set).then_some(LevelFilter::INFO));
    match file {
        Some(path) => trace::to_file(level, open(path)?),
        None => trace::to_stderr(level),
    }
    Ok(())
}

/// Opens a file for appending. A new file has mode 0640, and symbolic links are rejected.
fn open(path: &Path) -> Result<File, PathError> {
    let flags = OFlags::APPEND | OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW;
    // Opening a FIFO must not block.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o640)).with_path("open", path)?;
    Ok(File::from(file))
}
