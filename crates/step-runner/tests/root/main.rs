//! Steps in containers and images: needs root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod functions;
mod gitlab_runner;
mod oci;
mod static_program;
