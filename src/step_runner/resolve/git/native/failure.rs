//! Why a fetch failed, before it is known what it was part of.

use crate::sys::fs::PathError;

/// An error in fetching.
#[derive(Debug)]
pub(super) enum Failure {
    /// The time is over, or nobody waits any more.
    Stopped,
    /// The server does not know the protocol.
    Outdated,
    /// The server rejects what is asked for, in its words.
    Rejected(String),
    /// Anything else of the server, its data or the connection.
    Message(String),
    /// A file cannot be written.
    Path(PathError),
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Failure::Path(error)
    }
}

/// Returns an error of data that a server sent.
pub(super) fn malformed(error: impl ToString) -> Failure {
    Failure::Message(shown(&error.to_string()))
}

/// Returns a text of a server as part of a line, without what would do something to a terminal.
pub(super) fn shown(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let shown: String = line.chars().filter(|c| !c.is_control()).take(500).collect();
    if shown.is_empty() { "no error message".to_owned() } else { shown }
}
