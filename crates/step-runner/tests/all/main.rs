//! Steps compared with recordings of GitLab's step-runner, and clients of the service.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod cli;
mod engine;
mod git;
mod recorded;
mod service;
