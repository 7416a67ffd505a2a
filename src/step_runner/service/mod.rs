//! The two gRPC services on one socket, GitLab's own and that of the design document. Both share the same
//! jobs. Beside them is gRPC's health service.
//!
//! Where GitLab's step-runner returns `UNKNOWN`, so does its service here, with the same message; other
//! errors, and those of the design document's service, have specific codes.

mod document;
mod gitlab;
mod server;
mod stream;

pub use server::{Notice, ServeError, Server, Timing};
