//! Errors and summary of a file exchange.

use std::{fmt, io};

use oci_hooks_files::fs::PathError;
use oci_hooks_init::files::AppliedChange;
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{FileAction, FileEntryKind, FileProblem};
use rustix::io::Errno;

use crate::agent::{LinkError, SessionError};

/// Maximum number of failed files that a message names.
const NAMED: usize = 5;

/// Reasons for an incomplete exchange of files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A stream was lost: another attempt may succeed.
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot exchange files with the container: {attempts} attempts failed")]
    Lost { attempts: usize, source: LinkError },
    /// A frame is invalid: the process at the other end does not follow the agent's protocol, or
    /// the job has changed the agent.
    #[error("invalid file exchange with the agent in the container")]
    Agent(#[from] FrameError),
    #[error(transparent)]
    Host(#[from] PathError),
    #[error(transparent)]
    Failed(FileProblems),
    #[error("the disk of the container is full: cannot write {path}")]
    ContainerFull { path: String },
    #[error(
        "more than {limit} {what} would be copied from the container at once: raise `{key}` under [kubernetes] \
         of the settings if the job needs them"
    )]
    Limit { what: &'static str, limit: u64, key: &'static str },
}

/// Counts of an exchange.
#[derive(Clone, Debug, Default)]
pub struct ExchangeSummary {
    /// Number of files, directories and links written at the receiving end.
    pub written: u64,
    pub removed: u64,
    pub bytes: u64,
    /// Number of entries that were not exchanged: sockets, pipes and devices of the container, and
    /// links in scopes that exclude links.
    pub skipped: u64,
    /// Files that could not be read in the container.
    pub unread: FileProblems,
}

impl ExchangeSummary {
    pub(super) fn count(&mut self, change: &AppliedChange) {
        match change {
            AppliedChange::Entry(entry) => {
                self.written += 1;
                if entry.state.kind == FileEntryKind::File {
                    self.bytes += entry.state.size_bytes;
                }
            }
            AppliedChange::Removed(_) => self.removed += 1,
        }
    }
}

/// Files that could not be exchanged, with the reasons.
#[derive(Clone, Debug, Default)]
pub struct FileProblems {
    named: Vec<(FileAction, String, i32)>,
    count: u64,
}

impl FileProblems {
    /// Adds a problem. Messages show its path below the directory `root`.
    pub fn add(&mut self, root: &str, problem: &FileProblem) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push((problem.action, format_path(root, &problem.path), problem.errno));
        }
    }

    /// Adds all problems of `others`.
    pub(crate) fn append(&mut self, mut others: Self) {
        self.count += others.count;
        others.named.truncate(NAMED.saturating_sub(self.named.len()));
        self.named.append(&mut others.named);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Fails if there are problems.
    pub fn check(self) -> Result<(), FilesError> {
        if self.is_empty() { Ok(()) } else { Err(FilesError::Failed(self)) }
    }
}

/// Returns a path for messages: below `root` unless it is absolute, with control characters escaped.
pub fn format_path(root: &str, path: &[u8]) -> String {
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

/// Returns whether a problem means a full disk.
pub fn is_full(problem: &FileProblem) -> bool {
    [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error).contains(&problem.errno)
}

impl fmt::Display for FileProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (action, path, errno)) in self.named.iter().enumerate() {
            let action = match action {
                FileAction::List => "list",
                FileAction::Read => "read",
                FileAction::Write => "write",
                FileAction::Remove => "remove",
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

impl std::error::Error for FileProblems {}

fn reason(errno: i32) -> String {
    if errno == 0 {
        return "nested too deeply, or not a regular file".to_owned();
    }
    let text = io::Error::from_raw_os_error(errno).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}
