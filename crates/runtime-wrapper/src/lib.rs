//! The command line by which engines call the OCI runtimes runc, crun and youki, and the log from which engines
//! read errors.
//!
//! This library is part of the program `oci-hooks-runtime`, which wraps another runtime; it runs no program itself.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod invocation;
mod log;

pub use invocation::{ArgumentError, ContainerCall, Invocation};
pub use log::{LogFormat, RuntimeLog, RuntimeLogLevel};

/// Runtimes that the wrapper searches for, in order of preference.
pub const KNOWN: [&str; 3] = ["runc", "crun", "youki"];
