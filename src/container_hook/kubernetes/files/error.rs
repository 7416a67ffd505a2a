//! What an exchange of files came to.

use std::fmt;
use std::io;

use crate::container_hook::kubernetes::agent::{LinkError, SessionError};
use crate::sys::fs::PathError;
use crate::sys::init::files::Applied;
use crate::sys::init::frames::FrameError;
use crate::sys::init::frames::files::{Action, Kind, Problem};

/// How many files that could not be exchanged are named.
const NAMED: usize = 5;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// Why files were not exchanged, or not all of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("files were not exchanged with the container in {attempts} attempts")]
    Lost { attempts: usize, source: LinkError },
    /// Whatever answers is no agent of ours, or the job has changed it.
    #[error("the agent in the container does not exchange files as it should")]
    Agent(#[from] FrameError),
    #[error(transparent)]
    Host(#[from] PathError),
    #[error(transparent)]
    Failed(Trouble),
    #[error("the disk of the container is full: cannot write {path}")]
    ContainerFull { path: String },
    #[error(
        "the container has more than {limit} {what} for the runner: raise `{key}` under [kubernetes] if \
         that is right"
    )]
    Limit { what: &'static str, limit: u64, key: &'static str },
}

/// What was exchanged.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Files, directories and links that were written at the other end.
    pub written: u64,
    pub removed: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// Files, directories and links that there are.
    pub entries: u64,
    /// Sockets, pipes and devices, which are not exchanged, and links where somebody would follow them.
    pub skipped: u64,
    /// What could not be read in the container.
    pub unread: Trouble,
}

impl Summary {
    /// Counts a change that was made.
    pub(super) fn count(&mut self, change: &Applied) {
        match change {
            Applied::Entry(entry) => {
                self.written += 1;
                if entry.state.kind == Kind::File {
                    self.bytes += entry.state.size_bytes;
                }
            }
            Applied::Removed(_) => self.removed += 1,
        }
    }
}

/// Files that could not be exchanged, and why.
#[derive(Clone, Debug, Default)]
pub struct Trouble {
    named: Vec<(Action, String, i32)>,
    count: u64,
}

impl Trouble {
    /// Adds one; `root` is what the path is beneath, for people.
    pub fn add(&mut self, root: &str, problem: &Problem) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push((problem.action, joined(root, &problem.path), problem.errno));
        }
    }

    pub(in crate::container_hook::kubernetes) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Returns a path for people: beneath a root, unless it is absolute. Only printable characters get into logs.
pub fn joined(root: &str, path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    let path = if path.starts_with('/') { path.into_owned() } else { format!("{root}/{path}") };
    let mut shown = String::with_capacity(path.len());
    for character in path.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns whether a disk is full.
pub fn is_full(problem: &Problem) -> bool {
    matches!(problem.errno, ENOSPC | EDQUOT)
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (action, path, errno)) in self.named.iter().enumerate() {
            let action = match action {
                Action::List => "list",
                Action::Read => "read",
                Action::Write => "write",
                Action::Remove => "remove",
            };
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}cannot {action} {path}: {}", reason(*errno))?;
        }
        match self.count - self.named.len() as u64 {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Trouble {}

fn reason(errno: i32) -> String {
    if errno == 0 {
        return "it lies too deep, or is no file".to_owned();
    }
    let text = io::Error::from_raw_os_error(errno).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}
