//! Steps in git repositories.
//!
//! The program `git` fetches them: one commit at a time, without history. Tags and branches are resolved each
//! time; a commit is fetched once.
//!
//! References come from jobs and are not trusted. They are passed to git only after `--`, over HTTPS, HTTP
//! and SSH only, without hooks, remote helpers or terminal prompts. Passwords are passed in the
//! environment, never as arguments.

mod checkout;
mod error;
mod fetch;
mod options;
mod program;
mod repository;

pub use error::GitError;
pub use options::{GitCredential, GitFetcher};
