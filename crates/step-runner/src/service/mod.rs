//! The two gRPC services on one socket, GitLab's own and that of the design document, which share the same
//! jobs, and gRPC's health service.
//!
//! Where GitLab's step-runner returns `UNKNOWN`, so does its service here, with the same message; other
//! errors, and those of the design document's service, have specific codes.

mod document;
mod gitlab;
mod server;
mod stream;

pub use server::{GrpcServer, ServeError, ServerNotice, ShutdownTiming};
