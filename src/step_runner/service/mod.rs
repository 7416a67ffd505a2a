//! The two gRPC services on one socket: GitLab's own, and that of the design document. Both show
//! the same jobs.
//!
//! Where GitLab's step-runner answers `UNKNOWN` so does its service here, with the same text;
//! errors that it does not have, and those of the design document's service, have their proper
//! codes.

mod document;
mod gitlab;
mod incoming;
mod server;
mod stream;

pub use server::{Notice, ServeError, Server, Timing};
