//! Files of one tree, as both ends of an exchange read and write them: the agent of a container, and
//! the host. With nothing but `std`, and `at`, which each end has of its own.
//!
//! No symbolic link is followed beneath a root: every name is looked up in the directory that was
//! opened before it.

mod changes;
mod remove;
mod walk;
mod write;

use std::ffi::CString;
use std::io;

use super::frames::files::{Kind, State, Time};

pub use changes::{Changes, Event};
#[expect(unused_imports, reason = "lists are the agent's")]
pub use walk::{Found, Walk};
pub use write::{Applied, Tree, TreeWriter};

/// The names of files that are not complete begin with this. Such files are not exchanged.
const PART: &[u8] = b".oci-hooks.part";
/// How deep directories may lie in each other: each of them is open.
const MAX_DEPTH: usize = 256;

const FORMAT: u32 = 0o170_000;

/// What a file is.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// None for what is not exchanged.
    pub kind: Option<Kind>,
    /// The bits of `0o7777`.
    pub mode: u32,
    pub size_bytes: u64,
    pub time: Time,
}

impl Stat {
    pub(crate) fn new(mode: u32, size_bytes: u64, (seconds, nanoseconds): (i64, u32)) -> Self {
        let kind = match mode & FORMAT {
            0o100_000 => Some(Kind::File),
            0o040_000 => Some(Kind::Directory),
            0o120_000 => Some(Kind::Link),
            _ => None,
        };
        Stat { kind, mode: mode & 0o7777, size_bytes, time: Time { seconds, nanoseconds } }
    }

    pub(crate) fn state(&self) -> Option<State> {
        let kind = self.kind?;
        // Of directories it is how the file system keeps them.
        let size_bytes = if kind == Kind::Directory { 0 } else { self.size_bytes };
        Some(State { kind, mode: self.mode, size_bytes, time: self.time })
    }
}

/// Returns a name for the kernel.
fn terminated(name: &[u8]) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
