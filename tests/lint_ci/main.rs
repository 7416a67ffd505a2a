//! `oci-hooks lint` where CI calls it: the GitHub Action and the GitLab template. `tests/lint_tools` has what needs more
//! than a shell and its tools.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod action;
mod env;
mod github;
mod gitlab;
mod job;

/// A hook file with one warning, in line 2.
fn warning() -> String {
    env::GOOD.replace("\"timeout\"", "\"color\": 1, \"timeout\"")
}

/// A hook file with one note.
fn note() -> String {
    env::GOOD.replace(", \"timeout\": 5", "")
}
