//! Steps in git repositories.
//!
//! Fetches are shallow: one commit at a time, without history. Tags and branches are resolved each time; a
//! commit is fetched once. [`native`] fetches repositories over HTTP; the program `git` ([`mirror`])
//! fetches others, and all if the user selects it.
//!
//! References come from jobs and are not trusted. They are passed to git only after `--`, over HTTPS, HTTP
//! and SSH only, without hooks, remote helpers or terminal prompts. Passwords are passed in the
//! environment, never as arguments.

mod error;
mod fetch;
mod mirror;
mod native;
mod options;
mod program;
mod repository;

pub use error::GitError;
pub use options::{GitCredential, GitFetcher, GitMethod, UnknownGitMethod};
