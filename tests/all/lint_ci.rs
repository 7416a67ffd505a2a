//! `oci-hooks lint` as called in CI: the GitHub Action and the GitLab template. `tests/tools` has the tests
//! that need more than a shell and common tools.

mod action;
mod env;
mod github;
mod gitlab;
mod job;

/// Returns a hook file with one warning, in line 2.
fn warning() -> String {
    env::GOOD.replace("\"timeout\"", "\"color\": 1, \"timeout\"")
}

/// Returns a hook file with one note.
fn note() -> String {
    env::GOOD.replace(", \"timeout\": 5", "")
}
