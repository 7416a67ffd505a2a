//! Steps in git repositories, fetched by the program `git`.
//!
//! A repository is mirrored as little as it takes: one commit at a time, without history. What a tag
//! or a branch stands for is asked each time, a commit that was fetched once is not fetched again.
//!
//! References come from jobs. They reach git only behind `--`, over HTTPS, HTTP and SSH only, without
//! hooks, helpers that are reached by other protocols, or questions to a terminal. Passwords reach it
//! by its environment, never by its arguments.

mod credential;
mod error;
mod fetch;
mod program;
mod repository;

pub use credential::Credential;
pub use error::GitError;
pub use fetch::Git;
